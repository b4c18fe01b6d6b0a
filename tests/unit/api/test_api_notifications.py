"""The outbox over the API, and where a whole fleet stands in one call."""

from datetime import UTC, timedelta

from forecrest.v1 import control_pb2, control_service_pb2, notification_service_pb2

from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.client import Client, pages
from controller.core.types import Alarm, AlarmKind, DemandObservation, WorkloadState
from controller.notify.types import Delivery, DeliveryState, Kind, Notification, Severity
from controller.ports import ReplicaCounts
from tests.unit.api.conftest import NOW

SECOND = timedelta(seconds=1)
N = notification_service_pb2


async def tell(store: FakeStore, *deliveries: Delivery) -> None:
    async with store.unit_of_work() as uow:
        await uow.notifications.add(deliveries)
        await uow.commit()


def delivery(number: int, workload: str = "rec", sink: str = "ops") -> Delivery:
    told = Notification(
        f"n{number}",
        NOW + number * SECOND,
        Kind.ALARM_RAISED,
        Severity.CRITICAL,
        workload,
        "default",
        "sale",
        "Too few.",
        AlarmKind.PREWARM_MISSED,
    )
    return Delivery(sink, told)


async def test_a_notification_is_told_with_how_far_it_came(client: Client, store: FakeStore) -> None:
    await tell(store, delivery(1))
    async with store.unit_of_work() as uow:
        (claimed,) = await uow.notifications.claim("ops", NOW + 2 * SECOND, NOW + 9 * SECOND, 5)
        await uow.notifications.settle(
            claimed, DeliveryState.PENDING, NOW, next_at=NOW + 9 * SECOND, error="answered 503"
        )
        await uow.commit()

    (found,) = (await client.notifications.ListNotifications(N.ListNotificationsRequest())).notifications

    assert ("n1", "ops", "workloads/rec", "default", "sale", "Too few.") == (
        found.notification_id,
        found.sink,
        found.workload,
        found.namespace,
        found.subject,
        found.sentence,
    )
    assert (N.NOTIFICATION_KIND_ALARM_RAISED, control_pb2.ALARM_KIND_PREWARM_MISSED) == (
        found.kind,
        found.alarm,
    )
    assert (N.NOTIFICATION_SEVERITY_CRITICAL, N.NOTIFICATION_STATE_PENDING) == (found.severity, found.state)
    assert (1, "answered 503") == (found.attempt_count, found.error)
    assert NOW + 9 * SECOND == found.next_attempt_time.ToDatetime(UTC)
    assert not found.HasField("settle_time")


async def test_notifications_are_listed_by_page_and_filter(client: Client, store: FakeStore) -> None:
    await tell(store, *(delivery(n) for n in range(3)), delivery(3, "search"), delivery(4, "", "chat"))

    async def ids(**fields: object) -> list[str]:
        request = N.ListNotificationsRequest(page_size=2, **fields)  # type: ignore[arg-type]  # its own
        found = pages(client.notifications.ListNotifications, request, "notifications")
        return [one.notification_id async for one in found]

    assert ["n4", "n3", "n2", "n1", "n0"] == await ids()
    assert ["n3"] == await ids(workload="workloads/search")
    assert ["n4"] == await ids(sink="chat")
    assert [] == await ids(state=N.NOTIFICATION_STATE_DEAD)


def test_every_kind_severity_and_state_has_a_word_on_the_wire() -> None:
    for prefix, values, known in (
        ("NOTIFICATION_KIND_", Kind, N.NotificationKind),
        ("NOTIFICATION_SEVERITY_", Severity, N.NotificationSeverity),
        ("NOTIFICATION_STATE_", DeliveryState, N.NotificationState),
    ):
        words = {name.removeprefix(prefix) for name in known.keys()}  # noqa: SIM118 - no mapping
        assert {*values, "UNSPECIFIED"} == words


async def test_a_fleet_is_listed_with_alarms_and_demand_in_one_call(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    alarm = Alarm(AlarmKind.NO_DATA, "rec", "", "rec: no data")
    async with store.unit_of_work() as uow:
        await uow.states.save({"rec": WorkloadState(desired_replicas=7, alarms=(alarm,), last_at=NOW)})
        await uow.commit()
    demand = DemandObservation(NOW - SECOND, 0.0, None, 0.0, 1, 1, timedelta(seconds=60))
    await signals.put_demand("rec", demand, timedelta(minutes=1))
    await signals.put_replicas({"rec": ReplicaCounts(NOW - SECOND, 5, 2, 0)}, timedelta(minutes=1))

    rec, search = (await client.control.ListStatuses(control_service_pb2.ListStatusesRequest())).statuses

    assert ("workloads/rec/status", 7, "rec: no data") == (
        rec.status.name,
        rec.status.desired_replicas,
        rec.status.alarms[0].sentence,
    )
    assert (True, 0.0, NOW - SECOND) == (
        rec.HasField("demand_qps"),
        rec.demand_qps,
        rec.demand_time.ToDatetime(UTC),
    )
    assert (False, False, False, False) == (
        search.HasField("demand_qps"),
        search.HasField("demand_time"),
        search.status.HasField("desired_replicas"),
        search.status.HasField("replicas"),
    )
    counts = rec.status.replicas
    assert (5, 2, 0, NOW - SECOND) == (
        counts.warm_count,
        counts.starting_count,
        counts.draining_count,
        counts.observe_time.ToDatetime(UTC),
    )
    one = await client.control.GetStatus(control_service_pb2.GetStatusRequest(name=rec.status.name))
    assert rec.status == one


async def test_a_fleet_without_its_cache_is_one_of_unknown_demand_and_replicas(
    client: Client, signals: FakeSignalCache
) -> None:
    await signals.put_replicas({"rec": ReplicaCounts(NOW, 5, 2, 0)}, timedelta(minutes=1))
    signals.available = False

    found = (await client.control.ListStatuses(control_service_pb2.ListStatusesRequest())).statuses

    assert [False, False] == [one.HasField("demand_qps") for one in found]
    assert [False, False] == [one.status.HasField("replicas") for one in found]

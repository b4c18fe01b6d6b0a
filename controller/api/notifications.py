"""NotificationService: run the use case, map the result. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

from forecrest.v1 import control_pb2, notification_service_pb2, notification_service_pb2_grpc

from controller.api.calls import ApiDependencies, optional_workload, scope_of
from controller.notify.types import Delivery, DeliveryState
from controller.usecases.errors import InvalidError, Violation
from controller.usecases.listing import page_of, seal
from controller.usecases.notifications import list_notifications

_STATE = "NOTIFICATION_STATE_"


class NotificationServicer(notification_service_pb2_grpc.NotificationServiceServicer):
    """The outbox of notifications."""

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def ListNotifications(
        self, request: notification_service_pb2.ListNotificationsRequest, context: object
    ) -> notification_service_pb2.ListNotificationsResponse:
        """List notifications."""
        del context
        scope = scope_of(request)
        rows, token = await list_notifications(
            self._deps.store,
            page_of(request.page_size, request.page_token, scope),
            sink=request.sink,
            state=_state(request.state),
            workload=optional_workload(request.workload),
        )
        return notification_service_pb2.ListNotificationsResponse(
            notifications=map(_to_wire, rows), next_page_token=seal(token, scope)
        )


def _state(value: notification_service_pb2.NotificationState.ValueType) -> DeliveryState | None:
    if not value:
        return None
    try:
        return DeliveryState(notification_service_pb2.NotificationState.Name(value).removeprefix(_STATE))
    except ValueError as error:
        known = ", ".join(DeliveryState)
        raise InvalidError([Violation("state", f"{value} is unknown; choose from {known}")]) from error


def _to_wire(one: Delivery) -> notification_service_pb2.Notification:
    told = one.notification
    message = notification_service_pb2.Notification(
        notification_id=told.id,
        sink=one.sink,
        kind=notification_service_pb2.NotificationKind.Value(f"NOTIFICATION_KIND_{told.kind}"),
        severity=notification_service_pb2.NotificationSeverity.Value(
            f"NOTIFICATION_SEVERITY_{told.severity}"
        ),
        workload=f"workloads/{told.workload}" if told.workload else "",
        namespace=told.namespace,
        subject=told.subject,
        sentence=told.sentence,
        state=notification_service_pb2.NotificationState.Value(f"{_STATE}{one.state}"),
        attempt_count=one.attempt_count,
        error=one.error,
    )
    message.event_time.FromDatetime(told.at)
    if told.alarm is not None:
        message.alarm = control_pb2.AlarmKind.Value(f"ALARM_KIND_{told.alarm}")
    if one.next_at is not None:
        message.next_attempt_time.FromDatetime(one.next_at)
    if one.settled_at is not None:
        message.settle_time.FromDatetime(one.settled_at)
    return message

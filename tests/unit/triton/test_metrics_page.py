from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.demand import DemandMeter
from controller.adapters.triton_metrics import InvalidMetricsError, parse_metrics

AT = datetime(2026, 11, 11, tzinfo=UTC)
CPU_PAGE = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="recommender",version="1"} 1306
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="recommender",reason="OTHER",version="1"} 1
nv_inference_request_failure{model="recommender",reason="BACKEND",version="1"} 2
nv_inference_request_failure{model="recommender",reason="CANCELED",version="1"} 3
nv_inference_request_failure{model="recommender",reason="REJECTED",version="1"} 4
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="recommender",version="1"} 355
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="recommender",version="1"} 788458172
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="recommender",version="1"} 6
"""


def on_a_gpu(page: str, *, first: bool) -> str:
    """The page as on a GPU: each series also without `gpu_uuid` at 0, before or after the real one."""
    lines: list[str] = []
    for line in page.splitlines():
        if line.startswith("#"):
            lines.append(line)
            continue
        real = line.replace("{", '{gpu_uuid="GPU-1",')
        zero = line.rpartition(" ")[0] + " 0"
        lines += [zero, real] if first else [real, zero]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(CPU_PAGE, id="cpu"),
        pytest.param(on_a_gpu(CPU_PAGE, first=True), id="gpu, zero series first"),
        pytest.param(on_a_gpu(CPU_PAGE, first=False), id="gpu, zero series last"),
    ],
)
def test_series_of_one_metric_are_summed_in_both_forms(page: str) -> None:
    reading = parse_metrics(page, AT, "recommender")

    assert reading.at == AT
    assert reading.success_count == 1306
    assert reading.failure_count == 10
    assert reading.pending_count == 6
    assert reading.exec_count == 355
    assert reading.queue_duration_us == 788458172


def test_two_gpus_add_up() -> None:
    page = on_a_gpu(CPU_PAGE, first=True) + "\n".join(
        line.replace("{", '{gpu_uuid="GPU-2",') for line in CPU_PAGE.splitlines() if line[0] != "#"
    )

    assert parse_metrics(page, AT, "recommender").success_count == 2 * 1306


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Peers have kept the counters of one GPU, or of one set of labels, for those of the replica: when the labels
        # change, a jump of all there ever was is read as demand, or as a restart.
        pytest.param((1, 2), (1,), id="a GPU is gone"),
        pytest.param((1,), (1, 2), id="a GPU has come"),
        pytest.param((), (1,), id="counters without a GPU get one"),
    ],
)
def test_labels_that_change_are_no_demand(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    def page(gpus: tuple[int, ...], count: int) -> str:
        # Counters of a GPU that came begin at 0; those without a GPU stay at 0 while there is one.
        lines = [CPU_PAGE.replace(" 1306", " 0")]
        for gpu in gpus:
            served = count if gpu == 1 else 0 if gpus == after else 800
            series = f'nv_inference_request_success{{gpu_uuid="GPU-{gpu}",model="recommender",version="1"}}'
            lines.append(f"{series} {served}\n")
        return "".join(lines)

    meter, replica = DemandMeter(), "r"
    first = parse_metrics(page(before, 1306), AT)
    second = parse_metrics(page(after, 1306 if before else 20), AT + timedelta(seconds=2))
    third = parse_metrics(page(after, 1316 if before else 30), AT + timedelta(seconds=4))
    for reading in (first, second, third):
        meter.record("w", reading.at, {replica: reading})

    counted = sum(sample.demand_count for sample in meter.drain(AT + timedelta(minutes=2)))
    assert counted == pytest.approx(10 if before else 30)
    assert meter.reset_count == 0


def test_only_the_asked_model_counts_and_without_one_all_do() -> None:
    page = CPU_PAGE + CPU_PAGE.replace("recommender", "ranker")

    assert parse_metrics(page, AT, "ranker").success_count == 1306
    assert parse_metrics(page, AT).success_count == 2 * 1306


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("", "nv_inference_request_success is missing"),
        (CPU_PAGE.replace("pending_request_count{", "other{"), "pending_request_count is missing"),
        (CPU_PAGE.replace(" 1306", " NaN"), "nv_inference_request_success is nan"),
        (CPU_PAGE.replace(" 1306", " +Inf"), "nv_inference_request_success is inf"),
        (CPU_PAGE.replace(" 1306", " -1"), "nv_inference_request_success is -1"),
        ("<html>not metrics</html>\n", "not in the exposition format"),
    ],
)
def test_a_page_that_cannot_be_used_is_refused_with_the_reason(page: str, problem: str) -> None:
    with pytest.raises(InvalidMetricsError, match=problem):
        parse_metrics(page, AT)


def test_a_model_that_is_not_loaded_is_missing_not_zero() -> None:
    with pytest.raises(InvalidMetricsError, match="of model ranker is missing"):
        parse_metrics(CPU_PAGE, AT, "ranker")

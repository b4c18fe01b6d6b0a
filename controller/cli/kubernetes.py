"""``forecrest kubernetes``: what concerns the cluster itself rather than the controller."""

from typing import Annotated

import typer

from controller.cli.common import CliError, out, parse_duration, run
from controller.cli.servers import configure_logging, read_settings
from controller.ports import PortError

kubernetes = typer.Typer(help="Look after the objects Forecrest changed on Kubernetes.", no_args_is_help=True)


@kubernetes.callback()
def _group() -> None:
    """Look after the objects Forecrest changed on Kubernetes."""


@kubernetes.command()
def restore(
    after: Annotated[str, typer.Option(help="Wait so long first: until the controllers have ended.")] = "0s",
) -> None:
    """Give every autoscaler that mode FLOOR raised its own minimum and maximum back, and let our objects be deleted.

    Run it after stopping the controllers, as before removing Forecrest; the Helm chart does so on uninstall. It uses
    the pod's service account, or FORECREST_KUBERNETES_KUBECONFIG.

    Example: `forecrest kubernetes restore`
    """
    pause_s = parse_duration(after, "--after").total_seconds()
    settings = read_settings()
    configure_logging(settings.log_level)
    # Imported late: most commands need neither the client library nor the rest of the composition root.
    from controller.adapters.clock import SystemClock  # noqa: PLC0415
    from controller.bootstrap import (  # noqa: PLC0415
        kubernetes_actuator,
        kubernetes_api,
        kubernetes_namespaces,
    )
    from controller.crd.sync import release_all  # noqa: PLC0415

    async def call() -> None:
        clock = SystemClock()
        await clock.sleep(pause_s)
        try:
            actuator, api = kubernetes_actuator(settings, clock), kubernetes_api(settings)
            try:
                count = await actuator.restore_all()
                released = await release_all(api, kubernetes_namespaces(settings))
            finally:
                await actuator.close()
                await api.close()
        except PortError as error:
            raise CliError(str(error)) from error
        out().print(f"{count} autoscalers have their own limits back.")
        out().print(f"{released} Workload and TrafficEvent objects can be deleted without Forecrest.")

    run(call())

"""``forecrest kubernetes``: what concerns the cluster itself rather than the controller."""

import typer

from controller.cli.common import CliError, out, run
from controller.cli.servers import configure_logging, read_settings
from controller.ports import PortError

kubernetes = typer.Typer(help="Look after the objects Forecrest changed on Kubernetes.", no_args_is_help=True)


@kubernetes.callback()
def _group() -> None:
    """Look after the objects Forecrest changed on Kubernetes."""


@kubernetes.command()
def restore() -> None:
    """Give every autoscaler that mode FLOOR raised its own minimum and maximum back.

    Run it after stopping the controllers, as before removing Forecrest; the Helm chart does so on uninstall. It uses
    the pod's service account, or FORECREST_KUBERNETES_KUBECONFIG.

    Example: `forecrest kubernetes restore`
    """
    settings = read_settings()
    configure_logging(settings.log_level)
    # Imported late: most commands need neither the client library nor the rest of the composition root.
    from controller.adapters.clock import SystemClock  # noqa: PLC0415
    from controller.bootstrap import kubernetes_actuator  # noqa: PLC0415

    async def call() -> None:
        try:
            actuator = kubernetes_actuator(settings, SystemClock())
            try:
                count = await actuator.restore_all()
            finally:
                await actuator.close()
        except PortError as error:
            raise CliError(str(error)) from error
        out().print(f"{count} autoscalers have their own limits back.")

    run(call())

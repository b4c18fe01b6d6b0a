"""A call whose caller is gone ends once."""

from typing import NoReturn

import grpc
import pytest

from controller.api.errors import abort
from controller.ports import UnavailableError


class GoneContext:
    """Of a call that nobody waits for any more."""

    async def abort(self, *_: object) -> NoReturn:
        """Fail as gRPC does where nothing can be sent."""
        raise grpc.aio.InternalError


async def test_a_status_that_cannot_be_sent_ends_the_call_as_one_that_was() -> None:
    with pytest.raises(grpc.aio.AbortError):  # which says to those around that it needs no other status
        await abort(GoneContext(), UnavailableError("away"))  # type: ignore[arg-type]  # all that it uses of one

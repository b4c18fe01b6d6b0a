"""How often each caller may ask: a token bucket per caller, in bounded memory."""

from collections import OrderedDict

# Beyond so many callers the one that was silent longest begins anew, with a full bucket.
BUCKETS_MAX = 10_000


class Buckets:
    """``rate`` calls per second on average, ``burst`` at once, for each key."""

    def __init__(self, rate: float, burst: float, buckets_max: int = BUCKETS_MAX) -> None:
        self._rate, self._burst, self._max = rate, burst, buckets_max
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._left)

    def take(self, key: str, now_s: float) -> float:
        """Take one; return 0, or the seconds to wait until there is one. ``now_s`` never steps back."""
        left, at_s = self._left.pop(key, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._rate)
        wait_s = 0.0 if left >= 1.0 else (1.0 - left) / self._rate
        self._left[key] = (left - 1.0 if not wait_s else left, now_s)
        if len(self._left) > self._max:
            self._left.popitem(last=False)
        return wait_s

"""Nothing a client of the first release relies on is renamed, renumbered, retyped or removed.

Compared with a descriptor in the repository, so that a shallow clone without a network can tell.
"""

import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

ROOT = Path(__file__).resolve().parents[2]
BUF = Path(sys.executable).with_name("buf")
BASELINE = Path("proto/baseline.binpb")


def breaking(against: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [str(BUF), "breaking", "--against", str(against)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_the_protos_break_nothing_of_the_baseline() -> None:
    done = breaking(BASELINE)

    assert (0, "") == (done.returncode, done.stdout), done.stdout + done.stderr


def test_a_removed_field_would_be_noticed(tmp_path: Path) -> None:
    # The comparison itself is tested: against a baseline with one field more, it must fail.
    baseline = FileDescriptorSet.FromString((ROOT / BASELINE).read_bytes())
    for file in baseline.file:
        for message in file.message_type:
            if file.package == "forecrest.v1" and message.name == "Event":
                message.field.add(name="gone", number=9999, type=9, label=1, json_name="gone")
    changed = tmp_path / "changed.binpb"
    changed.write_bytes(baseline.SerializeToString())

    done = breaking(changed)

    assert done.returncode != 0
    assert "gone" in done.stdout

"""Traces are fetched whole or not at all, and used only when their bytes are the known ones."""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.workload.checks import ScheduleError
from harness.workload.recorded import Row
from harness.workload.traces import TRACES, fetch, main, read_trace, trace_folder
from tests.harness.workload.made_traces import AZURE, COPIES, needs_copies


def test_every_trace_is_pinned_to_a_commit_with_its_terms() -> None:
    assert len(TRACES) == len({trace.sha256 for trace in TRACES.values()}) == 5
    for trace in TRACES.values():
        assert len(trace.commit) == 40
        assert len(trace.sha256) == 64
        assert trace.terms


@needs_copies
def test_hashes_are_those_of_the_local_copies() -> None:
    lines = (COPIES / "SHA256SUMS").read_text().splitlines()
    assert {tuple(line.split()) for line in lines} == {(t.sha256, t.file) for t in TRACES.values()}


def test_the_default_folder_is_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLM_LADDER_CACHE", str(tmp_path))
    assert trace_folder() == tmp_path / "traces"
    monkeypatch.delenv("LLM_LADDER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert trace_folder() == tmp_path / ".cache" / "llm-ladder" / "traces"


def test_a_copy_is_checked_and_read(made_traces: Path, tmp_path: Path) -> None:
    target = fetch("azure_conv", tmp_path / "new" / "folder", source=made_traces)
    assert target.read_bytes() == AZURE.encode()
    assert read_trace("azure_conv", target.parent)[0] == Row(0, 30, 4)
    assert [entry.name for entry in target.parent.iterdir()] == ["azure_llm_2023_conv.csv"]


def test_a_copy_with_other_bytes_is_refused(made_traces: Path, tmp_path: Path) -> None:
    source = made_traces / TRACES["azure_conv"].file
    source.write_bytes(source.read_bytes() + b"\n")
    with pytest.raises(
        ScheduleError, match=f"{source} has SHA-256 .*, must have {TRACES['azure_conv'].sha256}"
    ):
        fetch("azure_conv", tmp_path / "new", source=made_traces)
    assert not (tmp_path / "new").exists()
    with pytest.raises(ScheduleError, match="must have"):
        read_trace("azure_conv", made_traces)


def test_a_whole_file_stays_and_a_damaged_one_is_replaced(made_traces: Path, tmp_path: Path) -> None:
    target = fetch("azure_code", tmp_path, source=made_traces)
    assert fetch("azure_code", tmp_path, source=Path("/nowhere")) == target
    target.write_bytes(b"damaged")
    fetch("azure_code", tmp_path, source=made_traces)
    assert target.read_bytes() == AZURE.encode()


def test_a_missing_trace_names_the_command_that_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_LADDER_CACHE", str(tmp_path))
    with pytest.raises(ScheduleError) as caught:
        read_trace("azure_code")
    assert str(caught.value) == (
        f"trace azure_code is not at {tmp_path}/traces/azure_llm_2023_code.csv; "
        "get it with: python -m harness.workload.traces fetch azure_code"
    )
    with pytest.raises(ScheduleError, match=f"fetch azure_code --to {tmp_path}/x$"):
        read_trace("azure_code", tmp_path / "x")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server over an empty folder: its address and the folder."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


def test_a_trace_comes_by_url_from_its_commit(
    made_traces: Path, mirror: tuple[str, Path], tmp_path: Path
) -> None:
    base, folder = mirror
    trace = TRACES["azure_conv"]
    path = folder / "Azure" / "AzurePublicDataset" / trace.commit / "data" / "AzureLLMInferenceTrace_conv.csv"
    with pytest.raises(ScheduleError, match=r"cannot bring http://.*_conv\.csv to .*404"):
        fetch("azure_conv", tmp_path, base=base)
    path.parent.mkdir(parents=True)
    path.write_bytes(AZURE.encode())
    assert fetch("azure_conv", tmp_path, base=base).read_bytes() == AZURE.encode()
    path.write_bytes(b"another file")
    with pytest.raises(ScheduleError, match="must have"):
        fetch("azure_conv", tmp_path / "again", base=base)


def test_the_command_copies_all_and_prints_terms(
    made_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "--from", str(made_traces), "--to", str(tmp_path / "to")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 5
    assert printed[0].startswith(f"{tmp_path}/to/azure_llm_2023_code.csv: CC BY 4.0; Pratyush Patel et al.")
    assert len(list((tmp_path / "to").iterdir())) == 5


def test_the_command_refuses_what_it_cannot_do(
    made_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made_traces / TRACES["azure_conv"].file).unlink()
    assert main(["fetch", "azure_conv", "--from", str(made_traces), "--to", str(tmp_path / "to")]) == 2
    assert "trace azure_conv: cannot bring" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["fetch", "azure"])
    assert caught.value.code == 2
    assert "no trace 'azure'; there are azure_code, azure_conv" in capsys.readouterr().err

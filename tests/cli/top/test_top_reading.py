"""Reading metrics, and what was counted between two readings."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_pages import page, showing

from onestream.cli.top.reading import NoMetrics, Reading, Series, counted, parse, read
from onestream.serving.server.triton.ports import free_port

names = st.sampled_from(["nv_inference_count", "onestream_bad_images", "onestream_step_batches"])
series: st.SearchStrategy[Series] = st.tuples(
    names, st.sampled_from(["classify", "matte"]).map(lambda model: frozenset({("model", model)}))
)
counters = st.dictionaries(series, st.integers(0, 10**15).map(float))


@given(before=counters, after=counters)
def test_counts_never_fall_and_nothing_is_forgotten(before: dict[Series, float], after: dict[Series, float]) -> None:
    assert set(counted(Reading(0.0, before), Reading(1.0, before)).values()) <= {0.0}
    grown = counted(Reading(0.0, before), Reading(1.0, after))
    assert grown.keys() == after.keys()
    for one, more in grown.items():
        assert 0 <= more <= after[one]
        if after[one] >= before.get(one, 0.0):
            assert before.get(one, 0.0) + more == after[one]


@given(before=counters, after=counters)
def test_a_server_that_began_anew_counts_from_0(before: dict[Series, float], after: dict[Series, float]) -> None:
    began = Reading(1.0, {one: value / 2 for one, value in after.items()})
    more = {one: value + 1 for one, value in before.items()} | {one: value + 1 for one, value in after.items()}
    assert counted(Reading(0.0, more), began) == began.counters


@given(counters=counters, model=st.text(st.characters(codec="utf-8", exclude_characters="\r")))
def test_what_is_written_is_read(counters: dict[Series, float], model: str) -> None:
    escaped = model.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    written = {f'nv_inference_count{{model="{escaped}",version="1"}}': 3.0, "nv_cpu_utilization": 0.5}
    for (name, labels), value in counters.items():
        # Triton names some counters with _total, and some without.
        written[f'{name}_total{{model="{dict(labels)["model"]}"}}'] = value
    sample = parse(page(written), at_s=2.0)
    assert sample.at_s == 2.0
    assert sample.gauges == {("nv_cpu_utilization", frozenset()): 0.5}
    own = ("nv_inference_count", frozenset({("model", model), ("version", "1")}))
    assert sample.counters == counters | {own: 3.0}


@pytest.mark.parametrize("text", ["<html>no</html>", "nv_inference_count{model=", "{}", "a b c d"])
def test_what_is_no_metrics_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse(text, at_s=0.0)
    with showing(text) as shown, pytest.raises(NoMetrics, match=f"what {shown.url} answers are no metrics"):
        read(shown.url)


def test_only_what_is_elsewhere_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with showing(page({"nv_cpu_utilization": 0.5})) as proxy, showing(page({"nv_cpu_utilization": 0.25})) as shown:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        for host in ("127.0.0.1", "localhost"):
            assert list(read(f"http://{host}:{shown.port}/metrics").gauges.values()) == [0.25]
        assert (proxy.asked, shown.asked) == (0, 2)
        read("http://elsewhere.invalid:8002/metrics")
        assert (proxy.asked, shown.asked) == (1, 2)


def test_no_server_is_told_from_a_wrong_page_and_from_silence() -> None:
    port = free_port("127.0.0.1")
    with pytest.raises(NoMetrics, match=f"no metrics from http://127.0.0.1:{port}/metrics: Connection refused"):
        read(f"http://127.0.0.1:{port}/metrics")
    with pytest.raises(NoMetrics, match=r"no metrics from http://no-such-host\.invalid/metrics: .*[Nn]ame"):
        read("http://no-such-host.invalid/metrics")
    with showing("") as shown:
        shown.status = 404
        with pytest.raises(NoMetrics, match="answers 404 Not Found; Triton's metrics are at"):
            read(shown.url)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # Something that speaks no HTTP: it hangs up.
        listening.settimeout(10)
        threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()
        with pytest.raises(NoMetrics, match="no metrics from"):
            read(f"http://127.0.0.1:{listening.getsockname()[1]}/metrics")

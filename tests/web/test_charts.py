"""Charts are drawn from numbers alone, say in words what they show, and have a table with the same numbers."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import pytest
from markupsafe import Markup

from pqrun.web.charts import Series, histogram, lines, sparkline, stacked_bars
from pqrun.web.rendering import NOTHING, percent, span
from tests.web.shop import HOSTILE

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMES = [START + timedelta(minutes=2) * n for n in range(4)]


def drawn(chart: Markup) -> ET.Element:
    """The whole of it, which must be well-formed."""
    return ET.fromstring(f"<div>{chart}</div>")  # made here


def rows(chart: Markup) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in drawn(chart).iter("tr")]


def bars(chart: Markup) -> list[dict[str, str]]:
    return [dict(one.attrib) for one in drawn(chart).iter("rect")]


def test_bars_stand_upon_another_below_a_round_number() -> None:
    chart = stacked_bars(
        "c", "Outcomes", TIMES, [Series("done", "done", [30, 0, 7, 0]), Series("failed", "failed", [10, 0, 0, 0])]
    )
    first, second, third = bars(chart)
    assert '<span class="top-of" aria-hidden="true">40</span>' in chart
    assert float(first["height"]) == pytest.approx(3 * float(second["height"]), abs=0.1)
    assert float(second["y"]) + float(second["height"]) == pytest.approx(float(first["y"]), abs=0.02)
    assert float(first["y"]) + float(first["height"]) == pytest.approx(120, abs=0.02)
    assert (first["class"], second["class"], third["class"]) == ("bar of-done", "bar of-failed", "bar of-done")


def test_the_twin_has_the_numbers_and_leaves_out_steps_in_which_nothing_was() -> None:
    chart = stacked_bars("c", "Outcomes", TIMES, [Series("done", "done", [3000, 0, 7, 0])])
    assert rows(chart) == [
        ["From", "done"],
        ["2026-03-01 12:00:00 UTC", "3,000"],
        ["2026-03-01 12:04:00 UTC", "7"],
    ]
    assert "Nothing was counted" in stacked_bars("c", "Outcomes", TIMES, [Series("done", "done", [0, 0, 0, 0])])


def test_a_chart_has_a_name_and_a_description_by_ids_of_its_own() -> None:
    chart = drawn(stacked_bars("c", "Outcomes", TIMES, [Series("done", "done", [1, 2, 3, 4])]))
    (svg,) = chart.iter("svg")
    said = {one.attrib["id"]: one.text for one in svg if "id" in one.attrib}
    assert [said[name] for name in svg.attrib["aria-labelledby"].split()] == [
        "Outcomes",
        "From 2026-03-01 12:00 UTC to 2026-03-01 12:06 UTC: 10 done.",
    ]
    assert svg.attrib["role"] == "img"


def test_a_line_is_broken_where_nothing_is_known_and_a_lonely_point_is_a_dash() -> None:
    chart = lines("c", "Waits", TIMES, [Series("p50", "p50", [1.0, 2.0, None, 4.0])], span)
    (path,) = re.findall(r'<path class="line of-p50" d="([^"]+)"', chart)
    assert path == "M75.00 90.00L225.00 60.00M480.00 0.00H570.00"
    assert rows(chart)[-1] == ["2026-03-01 12:06:00 UTC", "4.0 s"]
    assert "p50 at most 4.0 s" in chart


def test_a_histogram_goes_from_its_first_bucket_to_its_last() -> None:
    chart = histogram("c", "Runs", ("Time", "Jobs"), ["1 s", "2 s", "5 s", "9 s"], [0, 4, 0, 2])
    assert [bar["height"] for bar in bars(chart)] == ["120.00", "60.00"]
    assert rows(chart) == [["Time", "Jobs"], ["2 s", "4"], ["5 s", "0"], ["9 s", "2"]]
    assert "Nothing was counted" in histogram("c", "Runs", ("Time", "Jobs"), ["1 s"], [0])


def test_a_sparkline_says_its_sums() -> None:
    (svg,) = drawn(sparkline("In and out", [Series("in", "in", [1, 2]), Series("out", "out", [0, 3])])).iter("svg")
    assert svg.attrib["aria-label"] == "In and out: 3 in, 3 out"
    assert len(list(svg.iter("path"))) == 2


@pytest.mark.parametrize("times", [[], TIMES[:1]])
def test_no_time_and_one_step_are_drawn_too(times: list[datetime]) -> None:
    values = [5.0] * len(times)
    drawn(stacked_bars("c", "Outcomes", times, [Series("done", "done", values)]))
    drawn(lines("c", "Waits", times, [Series("p50", "p50", values)], span))
    drawn(sparkline("In and out", [Series("in", "in", values)]))


def test_nothing_hostile_becomes_markup_and_no_style_is_inline() -> None:
    series = [Series(HOSTILE, "done", [1, 2, 3, 4])]
    for chart in (
        stacked_bars("c", HOSTILE, TIMES, series),
        lines("c", HOSTILE, TIMES, series, span),
        sparkline(HOSTILE, series),
        histogram("c", HOSTILE, (HOSTILE, "Jobs"), [HOSTILE], [1]),
    ):
        drawn(chart)
        assert "<script" not in chart
        assert " style=" not in chart


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, NOTHING), (0.0, "0 %"), (0.001, "< 1 %"), (0.5, "50 %"), (0.9999, "> 99 %"), (1.0, "100 %")],
)
def test_a_share_that_is_not_whole_never_reads_as_all_or_nothing(share: float | None, text: str) -> None:
    assert percent(share) == text

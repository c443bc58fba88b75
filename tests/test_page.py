"""The report, from synthetic records: what it says, what it draws, and how a real browser takes it."""

import http.server
import json
import math
import re
import struct
import threading
from itertools import pairwise

import browser
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import record_file
from harness.comparison.questions import job_s
from harness.comparison.sections import group
from harness.record_file import RecordError
from harness.report import bounds, cost, curves, page, palette, series, svg
from harness.report.charts import dots, median_run, waterfall
from harness.report.tables import Table, figure
from synthetic import failed, record, trial_of, with_settings

ATTACK = """<img src=x onerror="alert(1)"> <script>alert(2)</script> | `code` [link](http://x) & "quoted" """
SECONDS = {
    "naive-batch": 30.0,
    "naive-batch-sorted": 29.0,
    "continuous-batch": 26.0,
    "continuous-batch-sorted": 25.0,
    "prefix-bucketing": 24.0,
    "ray-data": 22.0,
}
SMALL_KV = {"KV_CACHE_MEMORY_BYTES": 12_000_000_000}


def comparison(trials=3, **knobs):
    """A whole comparison with a twin; each trial is a little slower than the one before."""
    arms = {**{name: name for name in SECONDS}, "naive-batch-again": "naive-batch"}
    made = []
    for trial in range(1, trials + 1):
        for place, (arm, strategy) in enumerate(arms.items(), 1):
            steady_s = SECONDS[strategy] * (1 + 0.01 * trial + 0.002 * ((place * trial) % 3))
            config = {**trial_of("20260101-000000-ab", trial, place, arm), **knobs}
            at = f"2026-01-0{trial}T00:0{place}:00+00:00"
            made.append(record(strategy, steady_s + 20, steady_s, config=config, started_at=at))
    return made


def written(folder, made, price=None):
    html, markdown = page.write(made, folder, price)
    return html.read_text(), markdown.read_text()


def table_row(markdown, start):
    return next(line for line in markdown.splitlines() if line.startswith(f"| {start} |"))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A report with everything in it: two conditions, failures, a run set apart, a time series, bounds, an attack."""
    folder = tmp_path_factory.mktemp("results")
    made = [*comparison(), *comparison(**SMALL_KV)]
    made.append(failed("ray-data", ATTACK, config=trial_of("20260101-000000-ab", 4, 1, "ray-data")))
    made.append(record("naive-batch", status="invalid", error=ATTACK, warnings=[ATTACK]))
    made.append(with_settings(record("ray-data"), num_gpu_blocks=5000))
    lines = [
        {"run_id": m["run_id"], "possible_hit_rate": 0.8, "floor_s": 11.0, "working_set_tokens": 320000} for m in made
    ]
    (folder / "bounds.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for run in made[:6]:
        write_series(folder, run["run_id"])
    page.write(made, folder, 4.0)
    return folder


def write_series(folder, run_id):
    """Two engines: no look-up for 10 s, then every token missed for 10 s, then every token found for 10 s."""
    (folder / "timeseries").mkdir(exist_ok=True)
    times = [float(t) for t in range(31)] * 2
    queries = [max(t - 10, 0.0) * 100 for t in times]
    hits = [max(t - 20, 0.0) * 100 for t in times]
    columns = {
        "engine": ["a"] * 31 + ["b"] * 31,
        "t_s": times,
        "prefix_cache_queries": queries,
        "prefix_cache_hits": hits,
    }
    pq.write_table(pa.table(columns), folder / "timeseries" / f"{run_id}.parquet")


def test_a_browser_shows_the_page_without_a_complaint_or_a_request(full):
    seen = browser.look_at(full / "report.html")
    assert seen.console == []
    assert seen.requests == [(full / "report.html").as_uri(), "data:,"][: len(seen.requests)]
    assert seen.content_width <= 1240
    assert 3000 < seen.content_height < 12000
    assert struct.unpack(">II", seen.png[16:24]) == (seen.content_width, seen.content_height)
    assert len(seen.png) > 100_000
    assert "<script>alert(2)</script>" in seen.text


def test_a_browser_fits_the_page_to_paper(full):
    assert browser.look_at(full / "report.html", print_media=True).content_width <= 1240


def test_a_browser_fits_two_dozen_conditions_to_paper(tmp_path):
    written(tmp_path, [record(config={"MAX_NUM_SEQS": 64 + n, "MODEL_NAME": "../../.local/model"}) for n in range(24)])
    assert browser.look_at(tmp_path / "report.html", print_media=True).content_width <= 1240


def test_conditions_are_folded_on_the_screen_and_open_on_paper(full):
    screen, paper = (browser.look_at(full / "report.html", print_media=paper).text for paper in (False, True))
    assert "The same for all results (" in screen
    assert "MAX_NUM_SEQS" not in screen
    assert "MAX_NUM_SEQS" in paper


def test_charts_of_many_conditions_are_folded_and_the_map_of_all_comes_before_them(tmp_path):
    for count, is_open in ((1, True), (page.FEW_SECTIONS, True), (page.FEW_SECTIONS + 1, False)):
        html, _ = written(tmp_path, [record(config={"MAX_NUM_SEQS": 64 + n}) for n in range(count)])
        drawn, _, runs = html.partition("<h2>Charts</h2>")[2].partition("<h2>Runs</h2>")
        assert drawn.count("<details open>" if is_open else "<details>") == drawn.count("<details") == count
        assert drawn.index("Speed-up over naive-batch") < drawn.index("<details")
        assert ("<details open>" in runs) == is_open


def test_the_pages_policy_stops_even_a_request_that_got_into_it(full, tmp_path):
    asked = []
    with serving(asked) as address:
        leak = f'<img src="{address}/leak.png"></body>'
        html = (full / "report.html").read_text().replace("</body>", leak)
        (tmp_path / "guarded.html").write_text(html)
        (tmp_path / "open.html").write_text(html.replace(page.POLICY, ""))
        guarded = browser.look_at(tmp_path / "guarded.html")
        assert asked == []
        assert "Content Security Policy" in " ".join(guarded.console)
        browser.look_at(tmp_path / "open.html")
        assert asked == ["/leak.png"]


class serving:  # noqa: N801  (reads as a statement)
    """A local server that only remembers what it was asked for."""

    def __init__(self, asked):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_error(404)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_the_page_holds_no_script_and_names_no_other_resource(full):
    html = (full / "report.html").read_text()
    assert "<script" not in html
    assert re.findall(r'(?:src|href)="([^"]*)"', html) == ["data:,"]
    assert not re.search(r"@import|url\(", html)


def test_text_from_records_is_escaped_in_both_forms(full):
    html, markdown = (full / "report.html").read_text(), (full / "report.md").read_text()
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;" in html
    assert "<img" not in html
    assert "<img" not in markdown
    row = next(line for line in markdown.splitlines() if "onerror" in line and "failed" in line)
    assert r"\| \`code\` \[link\]" in row
    assert len(re.findall(r"(?<!\\)\|", row)) == 6


def test_conditions_and_limitations_come_before_any_result(full):
    headings = re.findall(r"<h2>(.*?)</h2>", (full / "report.html").read_text())
    assert headings[:3] == ["Conditions", "Limitations", "Results"]


def test_the_same_records_give_the_same_bytes(tmp_path):
    made = comparison()
    assert written(tmp_path, made) == written(tmp_path, made)


def test_failed_and_invalid_runs_are_rows_not_gaps(tmp_path):
    made = [*comparison(), failed("prefix-planned", "no such engine"), record(status="invalid", error="3 rows short")]
    html, markdown = written(tmp_path, made)
    assert table_row(markdown, "prefix-planned").startswith("| prefix-planned | 0 of 1 | - | - |")
    assert "| invalid |" in markdown
    assert "3 rows short" in markdown
    assert ">1 failed</text>" in html
    assert "2 run(s) did not end in a valid result" in markdown


def test_runs_under_other_conditions_are_never_averaged_and_the_report_says_what_differs(tmp_path):
    made = [record(wall_s=40.0), record(wall_s=80.0, versions={"vllm": "0.27.0"}), record(wall_s=60.0, config=SMALL_KV)]
    _, markdown = written(tmp_path, made)
    assert len(group(made)) == 3
    assert "| setting | A | B | C |" in markdown
    assert [line for line in markdown.splitlines() if line.startswith(("| KV\\_CACHE", "| version of vllm"))] == [
        r"| KV\_CACHE\_MEMORY\_BYTES | - | - | 12 GB |",
        "| version of vllm | 0.26.0 | 0.27.0 | 0.26.0 |",
    ]
    assert sorted(line.split("|")[3].strip() for line in markdown.splitlines() if "| 1 of 1 |" in line) == [
        "40.00",
        "60.00",
        "80.00",
    ]


def test_conditions_of_one_name_are_told_apart_by_what_differs():
    many, few = ({**record()["dataset"], "files": files} for files in (8, 4))
    made = [record(dataset=many), record(dataset=few), record(dataset=few, config={"LOGITS_PROCESSORS": "a.b:Forced"})]
    made[1]["config"]["LOGITS_PROCESSORS"] = made[0]["config"]["LOGITS_PROCESSORS"] = None
    made.append(record(hardware={"gpus": []}))
    assert [section.name for section in group(made)] == [
        "A: H200, 400_0-5_16, files 8",
        "B: H200, 400_0-5_16, files 4",
        "C: H200, 400_0-5_16, files 4, LOGITS_PROCESSORS Forced",
        "D: CPU, 400_0-5_16",
    ]


def test_what_a_record_does_not_say_of_its_machine_is_not_the_same_for_all(tmp_path):
    """Older records hold neither; their datasets had 8 files."""
    four, pinned = {**record()["dataset"], "files": 4}, {**record()["hardware"], "usable_cpus": 16}
    _, markdown = written(tmp_path, [record(), record(dataset=four, hardware=pinned)])
    assert {"| usable\\_cpus | - | 16 |", "| files | 8 | 4 |"} <= set(markdown.splitlines())


def test_machines_that_tell_conditions_apart_are_named_by_few_facts_in_readers_words():
    large = {"ray_cpus": 32.0, "driver_memory_bytes": 270334464000}
    hardware = [{}, large, large | {"gpus": ["NVIDIA H200"] * 2}]
    made = [record(hardware={**record()["hardware"], **other}) for other in hardware]
    assert [section.name for section in group(made)] == [
        "A: H200, 400_0-5_16, ray_cpus 16",
        "B: H200, 400_0-5_16, ray_cpus 32, gpus 1 x NVIDIA H200",
        "C: H200, 400_0-5_16, ray_cpus 32, gpus 2 x NVIDIA H200",
    ]
    made[1:] = [record(hardware={**record()["hardware"], "driver_memory_bytes": 270334464000})]
    assert group(made)[1].name == "B: H200, 400_0-5_16, driver_memory_bytes 270.3 GB"


def test_each_set_of_conditions_has_a_line_with_its_fastest_strategy_and_how_sure_that_is(tmp_path):
    alone = record("ray-data", config=SMALL_KV)
    _, markdown = written(tmp_path, [*comparison(), alone])
    second, first = (line.split(" | ") for line in in_short(markdown))
    assert first[1:3] + first[4:5] + first[6:7] == ["ray-data", f"{6000 / 22 / 1.02:.1f}", "naive-batch", "faster"]
    assert re.fullmatch(r"1\.3\d+ \(1\.\d+ to 1\.\d+\)", first[5])
    assert second[1:3] + second[4:7] == ["ray-data", "300.0", "-", "-", "-"]


def test_the_fastest_is_found_between_runs_of_one_trial_not_by_a_fast_day(tmp_path):
    # ray-data is the slower one in both of its trials, and took part on the two fast days only.
    days = {1: 20.0, 2: 20.0, 3: 60.0, 4: 60.0, 5: 60.0}
    arms = [(day, arm, days[day]) for day in days for arm in ("naive-batch", "naive-batch-again")]
    arms += [(day, "ray-data", 1.1 * days[day]) for day in (1, 2)]
    made = [
        record(arm.removesuffix("-again"), steady_s + 20, steady_s, config=trial_of("c", day, 1, arm))
        for day, arm, steady_s in arms
    ]
    (line,) = in_short(written(tmp_path, made)[1])
    assert line.split(" | ")[1:5:3] == ["naive-batch", "ray-data"]


def test_a_strategy_that_cannot_be_compared_with_the_others_is_named_and_is_not_the_fastest_for_that(tmp_path):
    made = [with_settings(run, max_num_seqs=16) if run["strategy"] == "naive-batch" else run for run in comparison()]
    _, markdown = written(tmp_path, made)
    (line,) = in_short(markdown)
    cells = line.split(" | ")
    assert (cells[1], cells[4]) == ("ray-data", "prefix-bucketing")
    assert cells[6].endswith("; not comparable: naive-batch")
    assert "Not all rows are comparable (max\\_num\\_seqs: 16 / 64)." in markdown
    (line,) = in_short(written(tmp_path, [run for run in made if run["strategy"] in ("naive-batch", "ray-data")])[1])
    assert line.split(" | ")[6] == "not comparable: ray-data"


def in_short(markdown):
    return [
        line
        for line in markdown.partition("**In short**")[2].partition("**")[0].splitlines()
        if re.match(r"\| [A-Z]: ", line)
    ]


def test_the_terminal_ends_with_the_short_answer_where_there_are_several(tmp_path):
    several = page.as_text([*comparison(1), *comparison(1, **SMALL_KV)], tmp_path, None)
    assert several.rpartition("\n\n")[0].endswith("\n\nIn short")
    assert "In short" not in page.as_text(comparison(1), tmp_path, None)


def test_a_run_whose_engines_had_a_smaller_cache_is_set_apart_with_the_reason(tmp_path):
    made = [record(wall_s=40.0), record(wall_s=41.0), with_settings(record(wall_s=90.0), num_gpu_blocks=5000)]
    _, markdown = written(tmp_path, made)
    assert "40.50 (40.00 to 41.00)" in markdown
    assert "| num\\_gpu\\_blocks: 10,000 / 5,000 |" in markdown


def test_a_record_that_does_not_fit_the_format_is_left_out_and_named(tmp_path):
    bad = record(wall_s=-5)
    _, markdown = written(tmp_path, [*comparison(), bad])
    assert f"Left out: record {bad['run_id'][:8]}" in markdown


def test_a_run_that_failed_and_lost_its_datasets_name_is_listed_all_the_same(tmp_path):
    lost = failed("ray-data", "an engine died")
    lost["dataset"] = {"fingerprint": "0" * 32}
    _, markdown = written(tmp_path, [lost])
    assert "an engine died" in markdown


def test_a_folder_without_records_gives_a_page_that_says_so(tmp_path):
    html, _ = written(tmp_path, [])
    assert "holds no usable record" in html


def test_every_question_is_answered_for_both_measures_with_intervals(tmp_path):
    _, markdown = written(tmp_path, comparison())
    row = table_row(markdown, "A: H200, 400\\_0-5\\_16 | naive-batch → continuous-batch")
    assert re.search(r"1\.15\d \(1\.\d+ to 1\.\d+\) \| faster \| 1\.08\d \(1\.\d+ to 1\.\d+\) \| faster", row)
    noise = table_row(markdown, "A: H200, 400\\_0-5\\_16 | naive-batch → naive-batch-again")
    assert "no clear difference" in noise


def test_every_strategy_is_judged_a_users_own_too(tmp_path):
    made = comparison()
    own = [record("mine", 35.0, 15.0, config=trial_of("20260101-000000-ab", n, 8, "mine")) for n in (1, 2, 3)]
    _, markdown = written(tmp_path, [*made, *own])
    for strategy, verdict in (
        ("mine", "faster"),
        ("prefix-bucketing", "faster"),
        ("continuous-batch-sorted", "faster"),
    ):
        row = table_row(markdown, f"A: H200, 400\\_0-5\\_16 | naive-batch → {strategy}")
        assert row.split(" | ")[3] == verdict
    assert "naive-batch → mine" in page.as_text([*made, *own], tmp_path, None)
    alone = [record("mine", config=SMALL_KV), record("yours", config=SMALL_KV)]
    assert "mine → yours" in written(tmp_path, alone)[1]


def test_a_difference_between_twins_is_a_limitation(tmp_path):
    made = comparison()
    for run in made:
        if run["config"]["COMPARISON_ARM"] == "naive-batch-again":
            run.update({key: value for key, value in record("naive-batch", 80.0, 60.0).items() if key.endswith("_s")})
    _, markdown = written(tmp_path, made)
    limits = markdown[: markdown.index("## Results")]
    assert "the A/A pair differs (naive-batch → naive-batch-again)" in limits
    assert "A/A pair differs" not in written(tmp_path, comparison())[1]


def test_cost_counts_every_gpu_second_and_only_accepted_rows():
    runs = [record(wall_s=40.0), failed("naive-batch", "died", wall_s=60.0)]
    paid = cost.of(runs)
    assert paid.gpu_s == 100
    assert paid.per_million_tokens(3.6) == pytest.approx(100 * 0.001 / 6400 * 1e6)
    assert paid.per_thousand_rows(3.6) == pytest.approx(100 * 0.001 / 400 * 1e3)
    assert paid.per_thousand_rows(None) == pytest.approx(250)


def test_cost_with_a_run_of_unknown_length_is_a_lower_bound(tmp_path):
    made = [*comparison(1), {**failed("ray-data", "lost"), "wall_s": None}]
    _, markdown = written(tmp_path, made)
    assert "≥ 6,597" in table_row(markdown, "ray-data")


def test_without_a_price_the_report_counts_gpu_seconds_and_says_so(tmp_path):
    _, markdown = written(tmp_path, comparison(1))
    assert "GPU-s / 1M output tokens" in markdown
    assert "GPU\\_PRICE\\_PER\\_HOUR is not set" in markdown


def test_bounds_stand_beside_what_was_achieved(full):
    markdown = (full / "report.md").read_text()
    # Hit rate 0.5 of possible 0.8; a floor of 11 s against 22.9 s of steady generation and 1.5 s of tail.
    row = [cell.strip() for cell in table_row(markdown, "ray-data").split("|")]
    assert "62.5 %" in row
    measured = median_run([run for run in comparison() if run["strategy"] == "ray-data"])["phases_s"]["steady"] + 1.5
    assert f"{100 * 11 / measured:.1f} %" in row


def test_where_bounds_are_missing_the_table_says_what_works_them_out(full, tmp_path):
    how = "forecast-records.py --write works out ÷ possible and, on GPUs, the floor."
    assert how in written(tmp_path, comparison())[1]
    assert how not in (full / "report.md").read_text()


def test_the_last_bounds_of_a_run_win_and_a_missing_file_means_none(tmp_path):
    assert bounds.load(tmp_path) == {}
    (tmp_path / "bounds.jsonl").write_text('{"run_id": "a", "floor_s": 1}\n{"run_id": "a", "floor_s": 2, "more": 1}\n')
    assert bounds.load(tmp_path)["a"] == bounds.Bounds(floor_s=2)


@pytest.mark.parametrize(
    "bad", [b'{"run_id": "a", "floo', b"[]", b'{"floor_s": 1}', b'{"run_id": "a", "floor_s": "1"}']
)
def test_a_line_that_is_no_bound_is_named(tmp_path, bad):
    (tmp_path / "bounds.jsonl").write_bytes(b'{"run_id": "a", "floor_s": 1}\n' + bad)
    with pytest.raises(RecordError, match=r"bounds.jsonl:2: expected the bounds of a run, found .*Delete this line"):
        bounds.load(tmp_path)


@pytest.mark.parametrize("columns", [None, {"engine": ["a"]}])
def test_a_time_series_that_cannot_be_read_is_said_and_drawn_as_none(tmp_path, capsys, columns):
    run = record()
    path = tmp_path / "timeseries" / f"{run['run_id']}.parquet"
    path.parent.mkdir()
    if columns is None:
        path.write_bytes(b"PAR1 half")
    else:
        pq.write_table(pa.table(columns), path)
    assert "No run of these conditions has a time series" in curves.hit_rate(group([run])[0], tmp_path)
    assert f"warning: {path} is drawn as no time series: " in capsys.readouterr().err


def test_pressure_on_the_cache_is_the_working_set_over_one_engines_capacity():
    assert bounds.kv_pressure(record(), bounds.Bounds(working_set_tokens=320_000)) == 2.0
    assert bounds.kv_pressure(record(), bounds.Bounds()) is None


def test_every_axis_starts_at_zero_and_dots_stand_where_their_values_are():
    (section,) = group([record(wall_s=40.0), record(wall_s=50.0)])
    chart = dots(section, "Whole job, s", job_s)
    labels = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="middle"[^>]*>([\d,.]+)</text>', chart)
    ticks = [(float(x), float(text)) for x, text in labels]
    assert ticks[0][1] == 0
    scale = (ticks[-1][0] - ticks[0][0]) / ticks[-1][1]
    dots_at = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', chart)]
    assert dots_at == pytest.approx([ticks[0][0] + scale * value for value in (40, 50)], abs=0.11)


def test_every_charts_title_names_its_unit(full):
    titles = re.findall("<figcaption>([^<]*)", (full / "report.html").read_text())
    assert len(titles) >= 5
    assert [
        title for title in titles if not re.search(r", s \(|tokens/s|, times\)|: share of .* by seconds", title)
    ] == []


@pytest.mark.parametrize("largest", [0.0003, 0.07, 1, 3.3, 49.9, 50, 61, 999, 123456])
def test_an_axis_ends_at_a_round_number_at_or_above_the_largest_value(largest):
    end = svg.axis_end(largest)
    ticks = svg.ticks(end)
    assert largest <= end * (1 + 1e-9)
    assert end <= 1.5 * largest
    assert 3 <= len(ticks) <= 10
    assert (ticks[0], ticks[-1]) == (0, pytest.approx(end))


def test_a_waterfall_stacks_the_parts_of_the_median_run():
    runs = [record(wall_s=wall, steady_s=20.0) for wall in (50.0, 41.0, 30.0)]
    (section,) = group(runs)
    chart = waterfall(section)
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)" height="20', chart)]
    assert sum(widths) == pytest.approx(41.0 / svg.axis_end(41.0) * 500, abs=0.5)
    assert "prefill: 20 s" in chart


def test_a_record_without_parts_or_series_says_so_instead_of_drawing_nothing(tmp_path):
    made = [{**run, "waterfall_s": None, "phases_s": None} for run in comparison(1)]
    html, _ = written(tmp_path, made)
    assert "No record of these conditions holds the parts of its wall time." in html
    assert "No run of these conditions has a time series" in html
    assert "No record has its working set in bounds.jsonl" in html


def test_the_phases_stand_in_where_a_record_has_no_finer_parts():
    (section,) = group([record(waterfall_s=None)])
    assert "engine_start: 17 s" in waterfall(section)


def test_the_hit_rate_over_time_comes_from_differences_of_counters(tmp_path):
    run = record()
    write_series(tmp_path, run["run_id"])
    rates = series.hit_rates(run, tmp_path)
    assert all(rate == pytest.approx(0, abs=1e-9) for t, rate in rates if t <= 20)
    assert all(rate == pytest.approx(1) for t, rate in rates if t > 20.7)
    assert rates[-1][0] == pytest.approx(30)


def test_an_engine_without_a_look_up_draws_no_line(tmp_path):
    run = record()
    (tmp_path / "timeseries").mkdir()
    columns = {"engine": ["a"], "t_s": [1.0], "prefix_cache_queries": [0.0], "prefix_cache_hits": [0.0]}
    pq.write_table(pa.table(columns), tmp_path / "timeseries" / f"{run['run_id']}.parquet")
    assert series.hit_rates(run, tmp_path) == []
    assert "No run of these conditions has a time series" in curves.hit_rate(group([run])[0], tmp_path)


def test_the_crossover_map_has_a_point_for_each_strategy_and_condition(full):
    html = (full / "report.html").read_text()
    chart = html[html.index("Speed-up over naive-batch") :]
    for name in (n for n in SECONDS if n != "naive-batch"):
        assert len(re.findall(rf"<title>{name}: \d\.\d+ times in", chart)) == 2


def test_the_map_has_a_place_for_each_power_of_4_with_the_letters_of_its_conditions():
    pressures = {"A: x": 0.0, "B: x": 0.3, "C: x": 4.002, "D: x": 1e6}
    made = [curves.Crossing("L4", "ray-data", name, pressure, 1.2, None, None) for name, pressure in pressures.items()]
    (drawn,) = curves.crossovers(made)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert [text for text in texts if re.fullmatch(r"[A-D ]+|.* (to|and|1/2).*", text)] == [
        *("A B", "under 1/2"),
        *("C", "2 to 8"),
        *("D", "32 and more"),
    ]


def test_each_card_has_a_map_of_its_own():
    made = [curves.Crossing(card, "ray-data", f"{card}: x", 0.3, 1.2, None, None) for card in ("H200", "CPU", "H200")]
    first, second = curves.crossovers(made)
    assert "times) on H200 by" in first
    assert "CPU" not in first
    assert "times) on CPU by" in second


def test_strategies_are_told_apart_by_the_colour_blind_and_parts_in_grey():
    colors = list(palette.STRATEGY_COLORS.values())
    assert len(set(colors)) == len(colors)
    for matrix in (NORMAL, PROTAN, DEUTAN):
        distances = [distance(a, b, matrix) for i, a in enumerate(colors) for b in colors[:i]]
        assert min(distances) > 12
    greys = [luminance(palette.part_color(i, 12)) for i in range(12)]
    assert all(b - a > 0.01 for a, b in pairwise(greys))


# Full protanopia and deuteranopia on linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
NORMAL = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
PROTAN = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
DEUTAN = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))


def linear(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def luminance(color):
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear(color), strict=True))


def distance(a, b, matrix):
    """CIE 1976 colour difference as seen through `matrix`; 2.3 is just noticeable."""
    return math.dist(
        *(lab([sum(m * c for m, c in zip(row, linear(color), strict=True)) for row in matrix]) for color in (a, b))
    )


def lab(rgb):
    rgb = [min(max(channel, 0.0), 1.0) for channel in rgb]
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [
        sum(m * c for m, c in zip(row, rgb, strict=True)) / white
        for row, white in zip(rows, (0.9505, 1, 1.089), strict=True)
    ]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return (116 * y - 16, 500 * (x - y), 200 * (y - z))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0, "0"), (0.0, "0"), (12, "12"), (1234.5, "1,234"), (1.0, "1.00"), (0.01234, "0.0123")],
)
def test_figures_show_three_digits_and_a_dash_for_the_unknown(value, shown):
    assert figure(value) == shown


def test_a_table_reads_the_same_in_all_three_forms():
    table = Table("A title", ("name", "s"), [("a<b", "1.0"), ("c|d", "20.5")], "A note.")
    assert table.text().splitlines()[-3:] == ["a<b    1.0", "c|d   20.5", "A note."]
    assert "| c\\|d | 20.5 |" in table.markdown()
    assert "| --- | ---: |" in table.markdown()
    assert '<td>a&lt;b</td><td class="figure">1.0</td>' in table.html()


def test_a_heading_takes_more_lines_rather_than_a_wider_column_on_a_terminal():
    table = Table("A title", ("name", "whole job, s (95 %)"), [("a", "20.5")])
    assert table.text().splitlines()[2:] == [
        "       whole",
        "      job, s",
        "name  (95\N{NO-BREAK SPACE}%)",
        "----  ------",
        "a       20.5",
    ]


def test_a_column_of_figures_stays_one_where_some_have_a_mark_or_words():
    table = Table("A title", ("s", "errors"), [("1.0*", "0"), ("2.0", "27.1 % (236 unfinished at the row's end)")])
    assert "| ---: | ---: |" in table.markdown()


def test_a_knobs_name_in_a_heading_breaks_between_its_words_not_its_letters():
    table = Table("Conditions", ("OUTPUT_LEN_MAX",), [("512",)])
    assert "OUTPUT_<wbr>LEN_<wbr>MAX" in table.html()
    assert "OUTPUT\\_LEN\\_MAX" in table.markdown()
    screen = page.STYLE.partition("@media print")[0]
    assert "anywhere" not in screen


def test_the_report_is_made_from_the_record_file(tmp_path):
    for run in comparison(1):
        record_file.append(run, tmp_path)
    _, markdown = written(tmp_path, record_file.load(tmp_path))
    assert table_row(markdown, "ray-data").startswith("| ray-data | 1 of 1 | 42.22")


def test_a_strategys_own_knob_parts_no_section_but_its_runs_are_not_averaged():
    runs = [record(name, config={"ROUTER_MIN_BUCKET_SIZE": 16}) for name in ("naive-batch", "ray-data")]
    old = [record("prefix-bucketing", config={"ROUTER_MIN_BUCKET_SIZE": 8}) for _ in range(3)]
    new = record("prefix-bucketing", config={"ROUTER_MIN_BUCKET_SIZE": 64}, started_at="2026-12-01T00:00:00+00:00")
    (section,) = group([*runs, *old, new])
    assert section.of("prefix-bucketing") == [new]
    assert section.set_apart == [(run, ["ROUTER_MIN_BUCKET_SIZE: 64 / 8"]) for run in old]
    # A script of the user's own may read any knob.
    mine = [record("mine", config={"ROUTER_MIN_BUCKET_SIZE": size}) for size in (1, 2)]
    (section,) = group(mine)
    assert len(section.kept) == 1


def test_a_run_by_hand_does_not_set_apart_those_of_a_comparison():
    block = {**trial_of("c", 1, 1, "prefix-planned"), "PLANNED_PACE": 1.0}
    compared = record("prefix-planned", config=block, started_at="2026-11-01T00:00:00+00:00")
    tried = record("prefix-planned", config={"PLANNED_PACE": 0.0}, started_at="2026-11-02T00:00:00+00:00")
    (section,) = group([compared, tried])
    assert section.kept == [compared]
    assert section.set_apart == [(tried, ["PLANNED_PACE: 1.0 / 0.0"])]


def test_knobs_of_all_strategies_part_sections():
    assert len(group([record(config={"MAX_NUM_SEQS": 1}), record()])) == 2
    assert len(group([record(config={"RAY_NUM_CPUS": n}) for n in (1, 2)])) == 2


def test_knobs_of_the_generator_and_of_live_traffic_part_no_section_and_are_no_condition(tmp_path):
    others = {"DATASET_ROWS": 200_000, "SERVING_RATES": 7}
    runs = [record(config=others), record(config={"DATASET_ROWS": 512, "SERVING_RATES": 5})]
    assert len(group(runs)) == 1
    html, markdown = written(tmp_path, [record(config=others)])
    assert "200000" not in html + markdown
    assert "SERVING" not in html + markdown


def test_runs_that_were_all_refused_are_listed_without_an_empty_table_or_chart(tmp_path):
    refused = failed("naive-batch", "no GPU", config={"CONCURRENCY": 128}) | {"status": "refused", "wall_s": None}
    html, markdown = written(tmp_path, [record(), refused])
    assert "no GPU" in markdown
    assert "0 of 1" not in markdown
    assert html.count("<figcaption>Whole job, s") == 1
    assert "0 of 1" not in page.as_text([record(), refused], tmp_path, None)

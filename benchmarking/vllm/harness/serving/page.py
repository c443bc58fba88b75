"""The serving page: one self-contained HTML file from the rows alone, in the report's style and under its policy."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.report.page import POLICY, STYLE
from harness.report.tables import UNKNOWN, Table
from harness.serving import charts, row_record, summary
from harness.serving.sections import Section, group

Row = dict[str, Any]

TITLE = "Live traffic on a vLLM server: which configuration meets the targets at the lowest cost"
FILE_NAME = "serving.html"


def write(rows: Sequence[Row], results_path: Path, price: float | None) -> Path:
    results_path.mkdir(parents=True, exist_ok=True)
    page = results_path / FILE_NAME
    page.write_text(as_html(rows, price), encoding="utf-8")
    return page


def as_html(rows: Sequence[Row], price: float | None) -> str:
    good = [row for row in rows if not problems(row)]
    left_out = len(rows) - len(good)
    body = [_section(section, price) for section in reversed(group(good))]
    if not body:
        body = ["<p>No row yet: run <code>python benchmarking/vllm/serving-scorecard.py</code>.</p>"]
    if left_out:
        body.insert(0, f"<p>{left_out} record(s) do not fit the format and are left out.</p>")
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<title>{TITLE}</title><style>{STYLE}th {{ overflow-wrap: normal }}</style>"
    )
    text = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><h1>{TITLE}</h1>\n{text}\n</body></html>\n'


def problems(row: Row) -> list[str]:
    """What keeps a row from the page: what is wrong by the format or, where that is fine, what breaks when it is shown
    alone. A row that was edited by hand must not cost the page of all others."""
    if found := row_record.problems(row):
        return found
    try:
        (section,) = group([row])
        _section(section, None)
        summary.as_json(section, None)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        return [f"a part of it is missing or of another type ({type(error).__name__}: {error})"]
    return []


def _section(section: Section, price: float | None) -> str:
    row = section.first
    gpus = row["hardware"]["gpus"]
    where = f"{len(gpus)} x {gpus[0]}" if gpus else f"{row['hardware']['cpu']} ({row['hardware']['cpus']} cores)"
    parts = [
        f"<h2>{html.escape(Path(row['config']['MODEL_NAME']).name)} on {html.escape(where)}</h2>",
        f"<p><b>{html.escape(summary.verdict(section, price))}</b></p>",
        conditions(section).html(),
        limitations(section),
        summary.scorecard(section, price).html(),
        summary.sides(section).html(),
        *charts.all_of(section),
        summary.causes(section).html(),
        summary.decision_list(section, price).html(),
    ]
    failed = summary.failures(section)
    parts += [failed.html()] if failed.rows else []
    return "\n".join([*parts, commands(section).html()])


def conditions(section: Section) -> Table:
    """Equal for every row of the section."""
    row = section.first
    targets = row["targets"]
    knobs = row["config"]
    tokens = (
        "CHAT_PROMPT",
        "CHAT_OUTPUT",
        "LONG_PROMPT",
        "LONG_OUTPUT",
        "AGENT_PREFIX",
        "AGENT_PROMPT",
        "AGENT_OUTPUT",
    )
    measured = next((one for one in section.rows if one["status"] == "ok"), row)
    whole = "" if targets["e2e_s"] is None else f"p95 end to end {targets['e2e_s']:g} s, "
    facts = {
        "targets": f"p95 TTFT {targets['ttft_s']:g} s, p95 ITL {targets['itl_s']:g} s, {whole}"
        f"failed or refused at most {targets['error_share']:.1%}",
        "arrivals": f"{knobs['SERVING_ARRIVALS']}, {knobs['SERVING_SECONDS_PER_RATE']:g} s a rate, "
        f"seed {knobs['SERVING_SEED']}, {knobs['SERVING_RETRIES']} retries",
        "traffic": f"{(measured['traffic'] or {}).get('source', UNKNOWN)}, version "
        f"{(measured['traffic'] or {}).get('version', UNKNOWN)}",
        "mean tokens": ", ".join(f"{name.lower()} {knobs[f'SERVING_{name}_LEN']}" for name in tokens),
        "engine": ", ".join(f"{name} {value}" for name, value in (measured["settings"] or {}).items()),
        "versions": ", ".join(f"{name} {value}" for name, value in row["versions"].items() if value),
        "commit": ", ".join(sorted({str(one["commit"])[:20] for one in section.rows})),
        "weights": knobs["LOAD_FORMAT"],
    }
    return Table("Conditions (engine: as the first configuration's server says)", ("", ""), list(facts.items()))


def limitations(section: Section) -> str:
    rows = [row for row in section.rows if row["status"] == "ok"]
    small = sum(row["counts"]["completed"] < 130 for row in rows)
    late = sum(not row["client"]["held"] for row in rows)
    warm = sum(row["cache_state"] != "cold" for row in rows)
    left = sum(row["after"]["settled_s"] is None for row in rows)
    lines = [
        f"{small} of {len(rows)} rows completed too few requests to certify a p95; their dots are hollow."
        if small
        else "",
        f"In {late} of {len(rows)} rows the client did not hold the offered rate." if late else "",
        f"{warm} of {len(rows)} rows did not start from a proven cold prefix cache: do not compare them."
        if warm
        else "",
        f"After {left} rows the server was not seen empty." if left else "",
        "Weights are random (LOAD_FORMAT dummy): the arithmetic of real ones, meaningless text."
        if section.first["config"]["LOAD_FORMAT"] == "dummy"
        else "",
        "No GPU: these rows show that everything works, not what a GPU does."
        if not section.first["hardware"]["gpus"]
        else "",
        "A server's start is not in the cost.",
    ]
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines if line)}</ul>"


def commands(section: Section) -> Table:
    """How to measure each configuration's rows again, and the server that they were measured on."""
    rows = []
    for name in section.configurations:
        mine = section.measured(name) or [row for row in section.rows if row["configuration"] == name]
        rows.append((name, _all_rates(mine), mine[0]["server_command"] or UNKNOWN))
    return Table("Every row again, from the repository's root", ("configuration", "command", "its server"), rows)


def _all_rates(rows: Sequence[Row]) -> str:
    """The command of the first row, with the rates of all."""
    given = [f"{row['rate']['offered_rps']:g}" for row in rows if row["rate"]]
    first = f"--rates {given[0]}" if given else ""
    command: str = rows[0]["command"]
    return command.replace(first, f"--rates {' '.join(given)}") if given else command

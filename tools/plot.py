#!/usr/bin/env python3
"""Draws the results of chiplog-bench, as in docs/performance.md. Needs matplotlib.

    tools/plot.py run target/bench.json OUT.svg            curves of the workloads that were measured
    tools/plot.py bars target/bars.json OUT.svg            each bar's ratio, relative to the requirement
    tools/plot.py connections target/bars.json OUT.svg     append rates by connections
"""

import json
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "chiplog", "font.size": 9, "axes.titlesize": 11}
matplotlib.rcParams |= {"font.family": "sans-serif", "font.sans-serif": ["system-ui", "Helvetica", "Arial", "DejaVu Sans"]}
matplotlib.rcParams |= {"axes.titlelocation": "left", "axes.titlepad": 26, "axes.spines.top": False, "axes.spines.right": False}

from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter  # noqa: E402

BLUE, GREY, ORANGE, RED, GREEN = "#2563eb", "#9ca3af", "#ea580c", "#be123c", "#059669"
MICROSECONDS = "microseconds"


def machine(results):
    """The line about the machine, as at the head of the tables."""
    m = results["machine"]
    size = f"{m['cores']} cores, {m['memory_bytes'] / 2**30:.0f} GiB"
    return f"{m['processor']}, {size}, Linux {m['kernel']}, {m['file_system']}, load {m['load']:.2f}"


def save(figure, title, results, path):
    """Writes a picture with its heading: the title, and the machine."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    figure.text(0.01, 1 - 0.46 / figure.get_figheight(), machine(results), color="#6b7280", va="top")
    figure.savefig(path, metadata={"Date": None})


def panels(drawn, title, results, path):
    """A picture of panels, two abreast. A panel: title, labels of x and y, lines of (name, colour, style, points)."""
    drawn = [panel for panel in drawn if any(len(points) > 1 for *_, points in panel[3])]
    if not drawn:
        sys.exit(f"{path}: nothing of this was measured")
    columns, rows = min(2, len(drawn)), (len(drawn) + 1) // 2
    figure, axes = pyplot.subplots(rows, columns, figsize=(5.4 * columns, 3.7 * rows + 0.5), squeeze=False, layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()), w_pad=0.15, h_pad=0.15)
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    for axis, (name, x_label, y_label, lines) in zip(axes.flat, drawn):
        for label, color, style, points in lines:
            if points:
                axis.plot(*zip(*points), color=color, linestyle=style, marker="o", markersize=3.5, linewidth=1.8, label=label)
        axis.set(title=name, xlabel=x_label, ylabel=y_label, xscale="log")
        axis.xaxis.set_major_locator(FixedLocator(thinned({x for *_, points in lines for x, _ in points})))
        axis.xaxis.set_major_formatter(short)
        axis.xaxis.set_minor_locator(FixedLocator([]))
        if y_label == MICROSECONDS:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(short)
            axis.yaxis.set_minor_formatter(NullFormatter())
        else:
            axis.set_ylim(bottom=0)
        axis.grid(axis="y", color="#e5e7eb")
        axis.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=len(lines), frameon=False, borderpad=0.2, columnspacing=1)
    save(figure, title, results, path)


def short(value, _position=None):
    """A tick's text: 500, 20k, 1.5M."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:.0f}k" if value >= 1e4 else f"{value:g}"


def thinned(ticks):
    """Those of the ticks of a logarithmic axis whose labels have room."""
    room = (max(ticks) / min(ticks)) ** 0.08
    kept = []
    for tick in sorted(ticks):
        if not kept or tick / kept[-1] > room:
            kept.append(tick)
    return kept


def run(results, path):
    """The curves of a run."""

    def curve(workload, of, x_unit=1.0):
        rows = [row for row in results["rows"] if row["workload"] == workload]
        return [(row["x"] / x_unit, of(row)) for row in rows if of(row) is not None]

    def latency(quantile, field="latency"):
        return lambda row: row[field] and row[field][quantile]

    def quantiles(workload, median, x_unit=1.0):
        named = [("p99.9", RED, "p999"), ("p99", ORANGE, "p99"), ("median", median, "p50")]
        return [(name, color, "-", curve(workload, latency(key), x_unit)) for name, color, key in named]

    threads = [
        ("chiplog", BLUE, "-", curve("append_threads", lambda row: row["figure"] / 1000)),
        ("bare loop: no format, no checksum", GREY, "--", curve("append_threads", lambda row: row["limit"] / 1000)),
    ]
    bare = ("bare loop, median", GREY, "--", curve("append_threads", latency("p50", "limit_latency")))
    drawn = [
        ("Durable appends of 2 KiB, blocking threads", "threads", "thousand appends a second", threads),
        ("How long an append waits, blocking threads", "threads", MICROSECONDS, [*quantiles("append_threads", BLUE), bare]),
        (
            "Latency from the moment an append was due, by rate",
            "appends a second offered",
            MICROSECONDS,
            quantiles("append_open_loop", BLUE),
        ),
        (
            "The disk: pwrite + fdatasync into a zero-filled file",
            "KiB a write",
            MICROSECONDS,
            quantiles("raw", GREEN, 1024),
        ),
    ]
    panels(drawn, "chiplog beside the machine's own limits", results, path)


def connections(results, path):
    """Append rates by connections, for the bars that were measured."""

    def curve(name):
        curves = [bar["curve"] for bar in results["bars"] if bar["name"].startswith(name) and bar.get("curve")]
        return [(x, rate / 1000) for x, rate in curves[0]] if curves else []

    def panel(title, of):
        named = [("chiplog.v1.Log", BLUE, "-", "native"), ("logspec.Log", GREEN, "-", "logspec"), ("Kafka", GREY, "--", "kafka")]
        lines = [(name, color, style, curve(f"net_{key}_{of}")) for name, color, style, key in named]
        return title, "connections", "thousand appends a second", [line for line in lines if line[3]]

    drawn = [
        panel("128 appenders of 2 KiB, one server", "one"),
        panel("128 appenders of 2 KiB, durable on two of three", "three"),
    ]
    panels(drawn, "Appends over the network", results, path)


def bars(results, path):
    """Each bar's ratio relative to its bar: to the right of the mark is better."""
    drawn = results["bars"]
    figure, axis = pyplot.subplots(figsize=(9, 1.2 + 0.36 * len(drawn)), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()))
    lengths = [min(bar["merit"], 1.7) for bar in drawn]
    axis.barh(range(len(drawn)), lengths, 0.62, color=[GREEN if bar["met"] else ORANGE for bar in drawn], alpha=0.85)
    for at, (bar, length) in enumerate(zip(drawn, lengths)):
        digits = 0 if bar["figure"] >= 100 else 2
        label = f"{bar['figure']:,.{digits}f} {bar['unit']}  (ratio {bar['ratio']:.2f}, bar {bar['bar']})"
        inside = length > 1.05
        axis.text(0.03 if inside else max(length, 1) + 0.03, at, label, va="center", color="white" if inside else "black")
    axis.axvline(1, color="#1f2937", linestyle="--", linewidth=1)
    axis.set_yticks(range(len(drawn)), [bar["name"] for bar in drawn])
    axis.set(xlim=(0, 2.1), ylim=(len(drawn) - 0.4, -0.6))
    axis.set_xticks([1], ["asked"])
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    save(figure, "The bars: what was reached, as a part of what is asked", results, path)


def main():
    """Reads a file of results, and draws it."""
    kinds = {"run": run, "bars": bars, "connections": connections}
    if len(sys.argv) != 4 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as file:
        kinds[sys.argv[1]](json.load(file), sys.argv[3])


if __name__ == "__main__":
    main()

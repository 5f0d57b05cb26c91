"""Draws the plots of bench/README.md from bench/results and from the table of Redis waits there. Run it with make bench-plots."""
import json
import pathlib
import re

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

bench = pathlib.Path(__file__).resolve().parent.parent
colours = {"headgate": "#0b6e4f", "nginx": "#8d99ae", "nginx+Lua": "#e07a5f", "nginx+Lua+Redis": "#9c3d54", "LiteLLM, before": "#b8b8b8", "LiteLLM, after": "#e07a5f"}


def figures(name):
    path = bench / "results" / (name + ".json")
    return json.loads(path.read_text()) if path.exists() else None


def save(fig, name):
    fig.tight_layout()
    fig.savefig(bench / "plots" / (name + ".png"), dpi=110, metadata={"Software": None})
    plt.close(fig)


def memory():
    found = figures("mem")
    if not found:
        return
    fig, ax = plt.subplots(figsize=(7, 4))
    for who, each in found["kib"].items():
        held = [(n, kib) for n, kib in zip(found["streams"], each) if kib]
        ax.plot(*zip(*held), marker="o", color=colours[who], label=who)
    ax.axhline(55, ls=":", color="#555", lw=1)
    ax.text(found["streams"][0], 58, "goal at 2,000: 55 KiB", fontsize=8, color="#555")
    ax.set(xscale="log", yscale="log", xlabel="open streams, each from a prompt of 100 KB", ylabel="resident memory per stream, KiB", title="Memory per open stream")
    ax.set_xticks(found["streams"], [f"{n:,}" for n in found["streams"]])
    ax.set_xticks([], minor=True)
    ax.set_yticks([], minor=True)
    ax.set_yticks([25, 50, 100, 200, 400], ["25", "50", "100", "200", "400"])
    ax.legend(frameon=False)
    save(fig, "memory")


def sizes():
    found = figures("sizes")
    if not found:
        return
    fig, ax = plt.subplots(figsize=(7, 4))
    kilobytes = [p["Bytes"] / 1000 for p in found]
    for who, key in (("headgate", "Headgate"), ("nginx", "Nginx"), ("nginx+Lua", "Lua")):
        ax.plot(kilobytes, [p[key] for p in found], marker="o", color=colours[who], label=who + (" (with Redis)" if who == "headgate" else ""))
    ax.set(xscale="log", yscale="log", xlabel="prompt, KB", ylabel="CPU per request, µs", title="CPU by prompt size, streamed answers")
    ax.set_xticks(kilobytes, [f"{k:,.0f}" for k in kilobytes])
    ax.legend(frameon=False)
    save(fig, "prompt-size")


def waits():
    rows = []
    for line in (bench / "README.md").read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 5 and (theirs := re.match(r"(\d+) → (\d+)", cells[4])) and (ours := re.match(r"(\d+) \+ (\d+)", cells[1])):
            rows.append((cells[0], int(ours[1]) + int(ours[2]), int(theirs[1]), int(theirs[2])))
    if not rows:
        return
    fig, ax = plt.subplots(figsize=(7, 3.6))
    series = [("headgate", 1), ("LiteLLM, after", 3), ("LiteLLM, before", 2)]
    for i, (who, column) in enumerate(series):
        bars = ax.barh([y + (i - 1) * 0.26 for y in range(len(rows))], [r[column] for r in rows], 0.24, color=colours[who], label=who)
        ax.bar_label(bars, padding=3, fontsize=8)
    ax.set_yticks(range(len(rows)), [r[0] for r in rows], fontsize=8)
    ax.invert_yaxis()
    ax.set(xlabel="waits for Redis per request (LiteLLM: as published)", title="Redis waits")
    ax.legend(frameon=False)
    save(fig, "redis-waits")


memory()
sizes()
waits()

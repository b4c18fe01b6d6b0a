// One workload's time axis (demand above, replicas below, zoomed together) and the drawer that explains decisions.
import { readout, short, timeChart } from "./chart.js";
import { fetchFragment, replaceContent } from "./live.js";
import { formatTime, nowMs, t } from "./words.js";

const axis = document.getElementById("axis");
const demandEl = document.getElementById("demand");
const replicasEl = document.getElementById("replicas");
const problem = document.getElementById("axis-problem");
const line = document.getElementById("readout");
const labels = { past: t("js.past"), median: t("js.median"), desired: t("js.desired"), warm: t("js.warm"), floor: t("js.floor") };
let series = null;
let charts = [];
let view = null; // what is zoomed to: [from, to]; null: everything

function columnsOf(demand) {
  // Bands need all four columns; what a forecast lacks is a column of nothing.
  const none = demand.t.map(() => null);
  return ["high0", "low0", "high1", "low1", "median", "past"].map((name) => demand[name] ?? none);
}

function draw() {
  for (const chart of charts) chart.destroy();
  const now = () => nowMs() / 1000;
  const marks = () => series.events;
  let following = false;
  const onRange = (min, max, from) => {
    if (following) return;
    view = min <= series.from + 1 && max >= series.to - 1 ? null : [min, max];
    following = true;
    for (const chart of charts) if (chart !== from) chart.setScale("x", { min, max });
    following = false;
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(table);
  };
  const { demand, replicas } = series;
  const shown = [
    timeChart(demandEl, [demand.t, ...columnsOf(demand)],
      [{ label: "" }, { label: "" }, { label: "" }, { label: "" }, { label: labels.median, stroke: "--accent", dash: [5, 3] }, { label: labels.past, stroke: "--text", width: 1.5 }],
      { height: demandEl.clientWidth < 500 ? 200 : 260, bands: [[1, 2, "--accent", 0.14], [3, 4, "--accent", 0.2]], marks, now, titles: true, sync: "axis", onRange, onCursor: say }),
    timeChart(replicasEl, [replicas.t, replicas.floor, replicas.warm, replicas.desired],
      [{ label: labels.floor, stroke: "--event", step: true, dash: [2, 3] }, { label: labels.warm, stroke: "--good", step: true, width: 2 }, { label: labels.desired, stroke: "--text", step: true, width: 1.5 }],
      { height: 150, marks, now, whole: true, sync: "axis", onRange, onCursor: say }),
  ];
  charts = shown;
  zoomTo(...(view ?? [series.from, series.to]));
}

/** Say what is at a time: the nearest bucket of demand, and the replicas of then. */
function say(seconds) {
  const { demand, replicas } = series;
  let index = Math.max(0, latest(demand, seconds));
  if (demand.t[index + 1] - seconds < seconds - demand.t[index]) index += 1;
  const at = latest(replicas, seconds);
  const pairs = ["past", "median"].map((name) => [labels[name], demand[name]?.[index]]);
  if (demand.low1?.[index] != null) pairs.push([t("js.band"), `${short(demand.low1[index])}–${short(demand.high1[index])}`]);
  if (at >= 0) for (const name of ["desired", "warm", "floor"]) pairs.push([labels[name], replicas[name][at]]);
  line.textContent = readout(seconds * 1000, nowMs(), pairs);
  line.title = `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

function latest(columns, seconds) {
  let index = -1;
  while (index + 1 < columns.t.length && columns.t[index + 1] <= seconds) index += 1;
  return index;
}

/** The same as a table: at most sixty rows, evenly spread over what is shown. */
function table() {
  const body = document.getElementById("axis-rows");
  const { demand } = series;
  const [from, to] = view ?? [series.from, series.to];
  const indices = demand.t.map((_, index) => index).filter((index) => demand.t[index] >= from && demand.t[index] <= to);
  const stride = Math.max(1, Math.ceil(indices.length / 60));
  body.replaceChildren(...indices.filter((_, place) => place % stride === 0).map((index) => {
    const row = document.createElement("tr");
    const cells = [
      formatTime(demand.t[index] * 1000, "datetime"),
      short(demand.past?.[index]),
      short(demand.median?.[index]),
      demand.low1?.[index] == null ? "–" : `${short(demand.low1[index])} – ${short(demand.high1[index])}`,
    ];
    cells.forEach((text, place) => {
      const cell = document.createElement(place ? "td" : "th");
      if (place) cell.className = "n";
      else cell.scope = "row";
      cell.textContent = text;
      row.append(cell);
    });
    return row;
  }));
}

let frame = 0;
function zoomTo(min, max) {
  for (const chart of charts) chart.setScale("x", { min, max });
}

const ZOOMS = { in: [0.25, -0.25], out: [-0.5, 0.5], back: [-0.35, -0.35], on: [0.35, 0.35] };
document.getElementById("zoom").addEventListener("click", (event) => {
  const what = event.target.closest("button")?.dataset.zoom;
  if (!what || !series) return;
  if (what === "reset") view = null;
  else {
    const [from, to] = view ?? [series.from, series.to];
    const width = to - from;
    const [left, right] = ZOOMS[what];
    let [min, max] = [from + left * width, to + right * width];
    if (max - min >= series.to - series.from) [min, max] = [series.from, series.to];
    // Nothing lies beyond the ends: stop there instead of showing emptiness.
    const past = Math.max(0, series.from - min) - Math.max(0, max - series.to);
    view = max - min < 300 ? view : [min + past, max + past];
  }
  zoomTo(...(view ?? [series.from, series.to]));
});

let turn = 0;
async function load({ keep = true } = {}) {
  const mine = (turn += 1);
  try {
    const got = JSON.parse(await fetchFragment(axis.dataset.series));
    if (mine !== turn) return;
    series = got;
    if (!keep) view = null;
    problem.hidden = true;
    draw();
    axis.dataset.drawn = axis.dataset.series;
  } catch (error) {
    if (mine !== turn || series) return; // the banner says that what is drawn is old
    problem.hidden = false;
    if (error.html) replaceContent(problem, error.html);
    else problem.textContent = t("js.failed", { detail: error.message });
  }
}

axis.addEventListener("forecrest:topic", () => load());
document.addEventListener("forecrest:theme", () => series && draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => series && draw());

for (const link of document.querySelectorAll("[data-range]")) {
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    history.replaceState(null, "", link.href);
    for (const other of document.querySelectorAll("[data-range]")) other.toggleAttribute("aria-current", false);
    link.setAttribute("aria-current", "true");
    axis.dataset.series = `/workloads/${axis.dataset.workload}/series?range=${link.dataset.range}`;
    axis.dataset.live = `series:${axis.dataset.workload}/${link.dataset.range}`;
    document.dispatchEvent(new CustomEvent("forecrest:topics"));
    load({ keep: false });
  });
}

// ------------------------------------------------------------ the drawer

const drawer = document.getElementById("drawer");
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-explain]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const body = document.getElementById("drawer-body");
  body.textContent = "…";
  drawer.dataset.from = link.id;
  drawer.showModal();
  try {
    replaceContent(body, await fetchFragment(link.href));
  } catch (error) {
    if (error.html) replaceContent(body, error.html);
    else body.textContent = t("js.failed", { detail: error.message });
  }
});
document.getElementById("drawer-close").addEventListener("click", () => drawer.close());
drawer.addEventListener("click", (event) => { if (event.target === drawer) drawer.close(); });
// The row may have been renewed meanwhile: the link with the same id gets the focus back.
drawer.addEventListener("close", () => document.getElementById(drawer.dataset.from)?.focus());

load();

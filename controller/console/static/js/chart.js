// Time charts on uPlot (a classic script that the page loads before), in the colours of the page.
import { formatTime, span, t } from "./words.js";

const probe = document.createElement("i");
probe.hidden = true;
document.body.append(probe);

/** The present value of a custom property of the page that is a colour. */
export function colour(name, alpha = 1) {
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  return alpha === 1 ? found : found.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
}

const SI = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of SI) if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${unit}`;
  return `${+value.toPrecision(3)}`;
}

/**
 * Draw columns over one axis of seconds. Returns the uPlot.
 *
 * @param el where
 * @param data uPlot's: [times, column, ...]
 * @param series [{label, stroke, width?, dash?, fill?, step?}], one per column; colours are names of properties
 * @param options {height, bands: [[upper, lower, colour, alpha]], marks: () => [{start, end, title}], now: () => s,
 *                 sync, whole: axis of whole numbers, onCursor(seconds), onRange(min, max)}
 */
export function timeChart(el, data, series, options) {
  const stepped = globalThis.uPlot.paths.stepped({ align: 1 });
  const axis = () => ({ stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${getComputedStyle(document.body).fontFamily}` });
  const made = new globalThis.uPlot(
    {
      width: el.clientWidth || 600,
      height: options.height,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: {
        sync: options.sync ? { key: options.sync, setSeries: false } : undefined,
        points: { size: 7 },
        drag: { x: true, y: false, uni: 20 },
      },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, (high > 0 ? high : 1) * 1.08] } },
      axes: [
        { ...axis(), size: 30, space: 84, values: (_, ticks, __, ___, step) => ticks.map((s) => formatTime(s * 1000, step >= 86400 ? "day" : step >= 21600 ? "dayhour" : "short")) },
        { ...axis(), size: 48, values: (_, ticks) => ticks.map((v) => (options.whole && v % 1 ? "" : short(v))) },
      ],
      series: [{}, ...series.map((one) => ({
        label: one.label,
        stroke: one.stroke ? colour(one.stroke) : "transparent",
        width: one.stroke ? (one.width ?? 1.75) : 0,
        dash: one.dash,
        paths: one.step ? stepped : undefined,
        points: { show: false },
        spanGaps: false,
      }))],
      bands: (options.bands ?? []).map(([upper, lower, name, alpha]) => ({ series: [upper, lower], fill: colour(name, alpha) })),
      hooks: {
        drawClear: [(u) => shade(u, options)],
        draw: [(u) => line(u, options)],
        setCursor: [(u) => { if (u.cursor.left >= 0) options.onCursor?.(u.posToVal(u.cursor.left, "x")); }],
        setScale: [(u, key) => { if (key === "x") options.onRange?.(u.scales.x.min, u.scales.x.max, u); }],
      },
    },
    data,
    el,
  );
  new ResizeObserver(() => {
    if (el.clientWidth && el.clientWidth !== made.width) made.setSize({ width: el.clientWidth, height: options.height });
  }).observe(el);
  return made;
}

/** Shade the marks: events on the axis. */
function shade(u, options) {
  const { ctx, bbox } = u;
  for (const mark of options.marks?.() ?? []) {
    const left = Math.max(bbox.left, u.valToPos(mark.start, "x", true));
    const right = Math.min(bbox.left + bbox.width, u.valToPos(mark.end, "x", true));
    if (right <= left) continue;
    ctx.save();
    ctx.fillStyle = colour("--event", 0.14);
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
    ctx.fillStyle = colour("--event");
    ctx.fillRect(left, bbox.top, right - left, 2 * devicePixelRatio);
    if (options.titles) {
      ctx.beginPath();
      ctx.rect(left, bbox.top, bbox.left + bbox.width - left, bbox.height);
      ctx.clip();
      ctx.font = `${11 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
      ctx.textAlign = "left"; // whatever the axes left behind
      ctx.textBaseline = "top";
      ctx.fillText(mark.title, left + 5 * devicePixelRatio, bbox.top + 6 * devicePixelRatio);
    }
    ctx.restore();
  }
}

/** Draw the line of now. */
function line(u, options) {
  const now = options.now?.();
  if (!now || now < u.scales.x.min || now > u.scales.x.max) return;
  const x = Math.round(u.valToPos(now, "x", true));
  u.ctx.save();
  u.ctx.strokeStyle = colour("--line-strong");
  u.ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  u.ctx.lineWidth = devicePixelRatio;
  u.ctx.beginPath();
  u.ctx.moveTo(x, u.bbox.top);
  u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
  u.ctx.stroke();
  u.ctx.restore();
}

/** Words for the place under the cursor. */
export function readout(ms, nowMs, pairs) {
  const distance = ms - nowMs;
  const away = Math.abs(distance) < 60000 ? t("js.now") : t(distance > 0 ? "js.in" : "js.ago", { span: span(distance) });
  return `${formatTime(ms, "datetime")} (${away}) · ${pairs.filter(([, value]) => value !== null && value !== undefined).map(([label, value]) => `${label} ${typeof value === "number" ? short(value) : value}`).join(" · ")}`;
}

#include "report/html.h"

#include <cctype>
#include <nlohmann/json.hpp>

#include "core/concat.h"

namespace halflife::report {
namespace {

// Returns valid UTF-8. The JSON library replaces bytes that are not.
std::string ValidUtf8(std::string_view text) {
  const std::string json = nlohmann::json(std::string(text))
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(json).get<std::string>();
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : ValidUtf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
    const size_t special = std::string_view("&<>\"'").find(c);
    constexpr const char* kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    out += special != std::string_view::npos ? std::string(kEntities[special])
           : control                         ? std::string("\xEF\xBF\xBD")
                                             : std::string(1, c);
  }
  return out;
}

std::string UrlOfPath(std::string_view path) {
  constexpr std::string_view kKept = "-_.~/=,+@";
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string url;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 0x80 && (std::isalnum(byte) != 0 || kKept.find(c) != kKept.npos);
    url += plain ? std::string(1, c) : Concat("%", kHex[byte >> 4], kHex[byte & 15]);
  }
  return url;
}

std::string ScriptJson(const nlohmann::ordered_json& json) {
  std::string out;
  for (const char c : json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)) {
    if (c == '<' || c == '>' || c == '&') {
      out += c == '<' ? "\\u003c" : c == '>' ? "\\u003e" : "\\u0026";
    } else {
      out += c;
    }
  }
  return out;
}

// The eight colours are those of Okabe and Ito (colour universal design, 2008), which are
// distinguishable with all common kinds of colour blindness. Yellow is replaced, because it is too
// faint on white. Runs also differ in their markers.
const char* const kPlotStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #ffffff; --card: #ffffff; --text: #1b1f24; --soft: #5b6570; --edge: #d9dee3; --grid: #e8ebee;
  --good: #00795a; --bad: #b3261e;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #b8579a; --s4: #d08c00; --s5: #3a9fd8; --s6: #333c46; --s7: #8a6d3b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1b1f23; --text: #e4e8eb; --soft: #98a2ac; --edge: #343b42; --grid: #2a3036;
    --good: #4fd0a5; --bad: #ff8a80;
    --s0: #56a9e0; --s1: #ff8b4a; --s2: #33c99b; --s3: #e59ccb; --s4: #f0b53f; --s5: #9bd6f7; --s6: #d7dde2; --s7: #c9a86f;
  }
}
svg text { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.grid line { stroke: var(--grid); } .grid .minor { stroke-opacity: .55; }
.grid .axis, .grid .tick { stroke: var(--soft); }
.grid .y { text-anchor: end; dominant-baseline: central; } .grid .x { text-anchor: middle; }
.grid .name { text-anchor: end; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); }
.line { fill: none; stroke: var(--c); stroke-width: 1.7; stroke-linejoin: round; stroke-linecap: round; }
.dashed { stroke-dasharray: 6 3; }
.band { fill: var(--c); fill-opacity: .2; }
.marks * { fill: var(--c); } .marks .hollow { fill: var(--card); stroke: var(--c); stroke-width: 1.7; }
.marks .nonfinite { fill: var(--bad); }
.cloud { opacity: .35; } .grid .slanted { text-anchor: end; }
.resume { stroke: var(--c); stroke-dasharray: 1 4; stroke-opacity: .8; }
.rule line { stroke: var(--soft); stroke-dasharray: 5 4; } .rule text { text-anchor: end; }
)css";

const char* const kPageStyle = R"css(
* { box-sizing: border-box; }
html { font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
body { margin: 0 auto; padding: 28px 24px 48px; max-width: 1320px; background: var(--page); color: var(--text); }
h1 { font-size: 1.5rem; font-weight: 650; margin: 0; letter-spacing: -.01em; }
h1.part { margin: 56px 0 0; padding-top: 20px; border-top: 1px solid var(--edge); }
h2 { font-size: 1.08rem; font-weight: 650; margin: 34px 0 10px; }
h3 { font-size: 1rem; font-weight: 600; margin: 22px 0 8px; }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: 3px; }
p { margin: 6px 0; max-width: 80ch; }
.soft, figcaption span, .none { color: var(--soft); }
.legend { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 14px 0 0;
  padding: 8px 0; list-style: none; background: var(--page); border-bottom: 1px solid var(--edge); }
.legend li { display: flex; align-items: center; gap: 7px; overflow-wrap: anywhere; }
.key { display: inline-block; width: 30px; height: 12px; flex: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 14px 6px 0; text-align: right; vertical-align: baseline; border-bottom: 1px solid var(--edge); }
thead th { color: var(--soft); font-weight: 500; font-size: .82rem; line-height: 1.25; vertical-align: bottom; }
th:first-child, td.words, th.words { text-align: left; }
tbody th { font-weight: 600; overflow-wrap: anywhere; }
td small { color: var(--soft); font-size: .82rem; white-space: nowrap; }
td.best { font-weight: 700; }
.summary table { width: 100%; } .summary tbody th { min-width: 14ch; }
.summary .key { vertical-align: -1px; margin-right: 6px; }
.code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; font-size: .85rem; }
pre { margin: 8px 0; padding: 12px 14px; border: 1px solid var(--edge); border-radius: 6px; overflow-x: auto; }
.status-finished { color: var(--good); } .status-failed { color: var(--bad); }
.grid-of-charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 20px 28px; }
figure { position: relative; margin: 0; min-width: 0; }
figcaption { display: flex; flex-wrap: wrap; gap: 0 10px; align-items: baseline; margin-bottom: 4px; }
figcaption b { font-weight: 600; } figcaption span { font-size: .82rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.cursor { stroke: var(--soft); visibility: hidden; }
.tip { position: absolute; z-index: 2; pointer-events: none; padding: 6px 9px; border: 1px solid var(--edge); border-radius: 6px;
  background: var(--card); font-size: .82rem; line-height: 1.4; white-space: nowrap; font-variant-numeric: tabular-nums;
  box-shadow: 0 2px 10px rgb(0 0 0 / .12); }
.tip i { display: inline-block; width: 9px; height: 9px; margin-right: 6px; border-radius: 2px; background: var(--c); }
summary { cursor: pointer; padding: 4px 0; } footer { margin-top: 44px; font-size: .85rem; color: var(--soft); }
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --text: #000; --soft: #444; --edge: #bbb; --grid: #ddd;
    --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #b8579a; --s4: #d08c00; --s5: #3a9fd8; --s6: #333c46; --s7: #8a6d3b; }
  html { font-size: 11px; } body { padding: 0; max-width: none; } .legend { position: static; }
  .grid-of-charts { grid-template-columns: 1fr 1fr; } figure, tr, li { break-inside: avoid; } h2 { break-after: avoid; }
  .scroll { overflow: visible; } pre { white-space: pre-wrap; }
}
)css";

const char* const kPageScript = R"js(
'use strict';
const short = (v) => v === null ? 'not finite' : String(Number(v.toPrecision(4)));
for (const figure of document.querySelectorAll('figure')) {
  const source = figure.querySelector('script[type="application/json"]');
  if (!source) continue;
  const data = JSON.parse(source.textContent);
  const svg = figure.querySelector('svg'), cursor = figure.querySelector('.cursor');
  const place = (v) => data.log ? Math.log(v) : v;
  const pixel = (v) => data.left + (data.right - data.left) *
      (place(v) - place(data.low)) / (place(data.high) - place(data.low));
  const tip = document.createElement('div');
  tip.className = 'tip';
  tip.hidden = true;
  figure.append(tip);
  const hide = () => { tip.hidden = true; cursor.style.visibility = 'hidden'; };
  const nearest = (xs, at) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (pixel(xs[middle]) < at) low = middle; else high = middle;
    }
    return Math.abs(pixel(xs[low]) - at) <= Math.abs(pixel(xs[high]) - at) ? low : high;
  };
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const hits = [];
    for (const curve of data.curves) {
      if (!curve.x.length) continue;
      const i = nearest(curve.x, at);
      if (Math.abs(pixel(curve.x[i]) - at) < 25) hits.push([curve, i]);
    }
    if (!hits.length) return hide();
    hits.sort((a, b) => Math.abs(pixel(a[0].x[a[1]]) - at) - Math.abs(pixel(b[0].x[b[1]]) - at));
    const x = hits[0][0].x[hits[0][1]];
    cursor.setAttribute('x1', pixel(x));
    cursor.setAttribute('x2', pixel(x));
    cursor.style.visibility = 'visible';
    hits.sort((a, b) => data.curves.indexOf(a[0]) - data.curves.indexOf(b[0]));
    tip.replaceChildren();
    const head = document.createElement('div');
    const whole = Number.isInteger(x) || Math.abs(x) >= 100;
    head.textContent = data.x + ' ' + (data.categories ? data.categories[x] :
        whole ? Math.round(x).toLocaleString('en') : short(x));
    tip.append(head);
    for (const [curve, i] of hits) {
      const row = document.createElement('div'), swatch = document.createElement('i');
      row.className = 's' + curve.style;
      const spread = curve.lo && curve.lo[i] !== curve.hi[i] ? ' (' + short(curve.lo[i]) + ' to ' + short(curve.hi[i]) + ')' : '';
      row.append(swatch, (data.curves.length > 1 ? curve.name + '  ' : '') + short(curve.y[i]) + spread);
      tip.append(row);
    }
    tip.hidden = false;
    const left = pixel(x) * box.width / svg.viewBox.baseVal.width, top = svg.offsetTop + 8;
    tip.style.top = top + 'px';
    tip.style.left = (left + tip.offsetWidth + 16 > box.width ? left - tip.offsetWidth - 12 : left + 12) + 'px';
  });
}
addEventListener('beforeprint', () => { for (const part of document.querySelectorAll('details')) part.open = true; });
)js";

}  // namespace halflife::report

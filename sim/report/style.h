// The style sheet of the page, but for the colours of colors.h. Private to sim/report.
#ifndef RAILSD_SIM_REPORT_STYLE_H_
#define RAILSD_SIM_REPORT_STYLE_H_

namespace railsd::sim {

inline constexpr char kStyle[] = R"(
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --line: #dfe3e8; --text: #1a2129; --quiet: #5b6673; --good: #1a7f37;
  --good-soft: #e3f4e7; --bad: #b3261e; --grid: #e4e8ec; --bound: #1a2129; --fixed: #9aa3ad; --compute: #c3cad2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161b; --card: #1a2027; --line: #2c353f; --text: #e6eaef; --quiet: #98a4b1; --good: #6ed38a;
    --good-soft: #17301f; --bad: #ff9189; --grid: #28313b; --bound: #e6eaef; --fixed: #6d7884; --compute: #46515d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.45 -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
header, main, footer { max-width: 68rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.4rem; }
h1 { font-size: 1.5rem; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 0; }
h3 { font-size: .95rem; margin: 1.5rem 0 .2rem; }
p { margin: .25rem 0 .7rem; }
.note, .facts, footer, figcaption { color: var(--quiet); font-size: .87rem; }
section, details {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.1rem; margin: 1rem 0;
}
summary { cursor: pointer; font-size: 1.1rem; font-weight: 650; }
summary small { font-weight: 400; font-size: .87rem; color: var(--quiet); margin-left: .6rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem; margin: 1rem 0 .3rem; }
.tiles div { border-left: 3px solid var(--s1); padding: .1rem .8rem; }
.tiles b { display: block; font-size: 1.45rem; line-height: 1.2; font-weight: 650; overflow-wrap: anywhere; }
.tiles span { color: var(--quiet); font-size: .87rem; }
.wide { overflow-x: auto; } .wide svg { min-width: 38rem; }
table { width: 100%; border-collapse: collapse; }
td, th { white-space: nowrap; text-align: right; padding: .3rem 0 .3rem 1rem; }
th { font-weight: 400; font-size: .85rem; color: var(--quiet); vertical-align: bottom; }
td { border-top: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.best td { color: var(--good); font-weight: 650; }
td.bad { color: var(--bad); }
.map td, .map th { text-align: center; padding: .25rem .5rem; }
.map td:first-child, .map th:first-child { text-align: left; }
.map td.best { font-weight: 700; text-decoration: underline; text-underline-offset: 2px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 0 1.5rem; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(14.7rem, 1fr)); gap: .3rem .8rem; }
figure { margin: 0; min-width: 0; } figcaption { text-align: center; margin: -.2rem 0 .8rem; }
svg { display: block; width: 100%; height: auto; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; font-size: .87rem; align-items: center; color: var(--quiet); }
.legend span { display: inline-flex; align-items: center; gap: .4rem; color: var(--text); }
.legend svg { width: 26px; height: 10px; }
.legend b { display: inline-flex; } .legend i { width: .6rem; height: .8rem; }
svg text { font-size: 12px; fill: var(--text); }
svg text.quiet { fill: var(--quiet); } svg text.strong { font-weight: 700; } svg text.bad { fill: var(--bad); }
svg text.small { font-size: 9px; fill: var(--quiet); } .change { fill: var(--bad); }
.grid { stroke: var(--grid); } .tick { stroke: var(--quiet); } .bound { stroke: var(--bound); stroke-dasharray: 5 3; }
.fixed { fill: var(--fixed); } .compute { fill: var(--compute); } .hidden { fill: var(--fixed); }
.curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .cross { fill: none; stroke-width: 2.2; }
)";

}  // namespace railsd::sim

#endif  // RAILSD_SIM_REPORT_STYLE_H_

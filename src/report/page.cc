#include "report/page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "core/concat.h"
#include "core/human.h"
#include "report/axis.h"
#include "report/html.h"
#include "report/plot.h"

namespace halflife::report {
namespace {

using Runs = std::vector<RunRecord>;

constexpr size_t kLastSteps = 20;  // Steps in the summary's mean training loss.

std::string Cell(const std::string& html) { return Concat("<td>", html, "</td>"); }
std::string Small(const std::string& text) { return Concat(" <small>", Escape(text), "</small>"); }

// Returns the run's marker on a short line.
std::string Key(size_t index) {
  return Concat("<svg class=\"key\" viewBox=\"0 0 30 12\" aria-hidden=\"true\">",
                StyleKey(static_cast<int>(index)), "</svg>");
}

std::string Status(const RunRecord& run) {
  if (run.finished) return "<td class=\"words status-finished\">finished</td>";
  if (!run.failure.empty()) return "<td class=\"words status-failed\">failed</td>";
  return Concat("<td class=\"words\">not finished",
                run.last_alive.empty() ? "" : Concat("<br>", Small("alive " + run.last_alive)),
                "</td>");
}

std::string Steps(const RunRecord& run) {
  const std::string of = run.total_steps > 0 ? Concat("of ", run.total_steps) : "";
  return Cell(Concat(run.last_step(), of.empty() ? "" : Small(of)));
}

std::string OptionalCell(const std::optional<double>& value,
                         const std::function<std::string(double)>& format) {
  return Cell(value ? format(*value) : "–");
}

// Returns the time of a run. A run that an older version started reports only the time since the
// newer version took over.
std::string WallTime(const RunRecord& run) {
  const Series &elapsed = run.metric("elapsed_s"), &loss = run.metric("loss");
  if (elapsed.empty()) return Cell("–");
  const bool whole = loss.empty() || elapsed.front().x <= loss.front().x;
  return Cell(HumanSeconds(run.elapsed_s) +
              (whole ? "" : Small(Concat("from step ", static_cast<int64_t>(elapsed.front().x)))));
}

bool Comparable(const Runs& runs) {
  return runs.size() > 1 && std::all_of(runs.begin(), runs.end(), [&](const RunRecord& run) {
           const auto same = [&](const char* field) {
             const auto mine = run.config.find(field), first = runs[0].config.find(field);
             return mine != run.config.end() && first != runs[0].config.end() &&
                    mine->second == first->second;
           };
           return same("data.path") && same("model.vocab_size");
         });
}

// Returns the run with the lowest validation loss, or SIZE_MAX if there is none or the runs are not
// comparable.
size_t BestRun(const Runs& runs) {
  size_t best = SIZE_MAX;
  if (!Comparable(runs)) return best;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto lowest = Lowest(runs[i].metric("val_loss"));
    if (lowest && (best == SIZE_MAX || lowest->y < Lowest(runs[best].metric("val_loss"))->y))
      best = i;
  }
  return best;
}

std::string SummaryRow(const Runs& runs, size_t index, size_t best) {
  const RunRecord& run = runs[index];
  std::string row = Concat("<tr><th>", Key(index), Escape(run.name), "</th>", Status(run));
  row += Concat("<td class=\"words\">", run.model.empty() ? "–" : Escape(run.model), "</td>");
  row += Cell(run.num_parameters ? HumanCount(static_cast<double>(*run.num_parameters)) : "–");
  row += Steps(run);
  const auto tokens = static_cast<double>(run.num_tokens());
  row += Cell(tokens > 0 ? HumanCount(tokens) : "–");
  row += OptionalCell(MeanOfLast(run.metric("loss"), kLastSteps),
                      [](double v) { return Fixed(v, 4); });
  const std::optional<Point> val = Lowest(run.metric("val_loss"));
  const char* mark = index == best ? "<td class=\"best\">" : "<td>";
  row += Concat(mark,
                val ? Fixed(val->y, 4) + Small(Concat("at ", static_cast<int64_t>(val->x))) : "–",
                "</td>");
  // The minima of these are at the same step. Pairs of answers and classifiers have no perplexity.
  const std::optional<Point> perplexity = Lowest(run.metric("val_perplexity"));
  row += Concat(mark, perplexity ? ShortNumber(perplexity->y) : "–", "</td>");
  const std::optional<Point> bits = Lowest(run.metric("val_bits_per_byte"));
  row += Concat(mark, bits ? Fixed(bits->y, 4) : "–", "</td>");
  row += OptionalCell(Median(run.metric("tokens_per_s")), ShortNumber);
  row += OptionalCell(Median(run.metric("mfu_full")),
                      [](double v) { return Fixed(100 * v, 1) + " %"; });
  row += OptionalCell(Highest(run.metric("peak_memory_bytes")), HumanBytes);
  row += OptionalCell(Sum(run.metric("step_ms")), [](double v) { return HumanSeconds(v / 1000); });
  row += WallTime(run);
  return row + Cell(run.world_size ? Concat(*run.world_size) : "–") + "</tr>";
}

std::string Summary(const Runs& runs) {
  std::string out =
      "<section class=\"summary\"><h2>Runs</h2><div class=\"scroll\"><table><thead><tr>"
      "<th>run</th><th class=\"words\">status</th><th class=\"words\">model</th><th>parameters</th>"
      "<th>steps</th><th>tokens</th><th>training loss,<br>last 20 steps</th><th>validation "
      "loss,<br>"
      "lowest</th><th>perplexity<br>per "
      "token</th><th>bits<br>per byte</th><th>tokens/s,<br>median</th><th>MFU,<br>median</th>"
      "<th>peak memory,<br>rank 0</th><th>time in steps</th><th>wall time,<br>all "
      "attempts</th><th>ranks</th></tr></thead><tbody>";
  const size_t best = BestRun(runs);
  for (size_t i = 0; i < runs.size(); ++i) out += SummaryRow(runs, i, best);
  out += "</tbody></table></div>";
  if (runs.size() > 1 && !Comparable(runs)) {
    out +=
        "<p class=\"soft\">These runs differ in their data or vocabulary: loss and perplexity per "
        "token do not compare across them. Bits per byte do, where the validation text is the "
        "same.</p>";
  }
  return out + "</section>";
}

// Returns the legend. Each element of `named` has a `name`; its style is its index.
template <typename Named>
std::string Legend(const std::vector<Named>& named) {
  std::string out = "<ul class=\"legend\">";
  for (size_t i = 0; i < named.size(); ++i) {
    out += Concat("<li>", Key(i), Escape(named[i].name), "</li>");
  }
  return out + "</ul>";
}

std::string Grid(const std::vector<PlotSpec>& plots) {
  std::string out = "<div class=\"grid-of-charts\">";
  for (const PlotSpec& plot : plots) out += RenderPlot(plot);
  return out + "</div>";
}

std::string ChartSections(const std::vector<ChartGroup>& groups) {
  std::string out;
  for (const ChartGroup& group : groups) {
    out += Concat("<section><h2>", Escape(group.title), "</h2>", Grid(group.plots), "</section>");
  }
  return out;
}

struct ValidationCell {
  std::optional<double> loss, perplexity, bits_per_byte;
};

std::string ValidationCells(const ValidationCell& cell) {
  const auto number = [](std::optional<double> value, auto format) {
    return Cell(value && std::isfinite(*value) ? format(*value) : "–");
  };
  const auto fixed = [](double value) { return Fixed(value, 4); };
  const bool broken = cell.loss && !std::isfinite(*cell.loss);
  return (broken ? Cell("not finite") : number(cell.loss, fixed)) +
         number(cell.perplexity, ShortNumber) + number(cell.bits_per_byte, fixed);
}

// Returns a table with one row per validated step and three columns per run.
std::string ValidationTable(const Runs& runs) {
  std::map<int64_t, std::vector<ValidationCell>> rows;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto cell_at = [&](const Point& point) -> ValidationCell& {
      auto& row = rows[static_cast<int64_t>(point.x)];
      row.resize(runs.size());
      return row[i];
    };
    for (const Point& point : runs[i].metric("val_loss")) cell_at(point).loss = point.y;
    for (const Point& point : runs[i].metric("val_perplexity")) cell_at(point).perplexity = point.y;
    for (const Point& point : runs[i].metric("val_bits_per_byte")) {
      cell_at(point).bits_per_byte = point.y;
    }
  }
  if (rows.empty()) return "";
  std::string out =
      Concat("<section><h2>Validation, step by step</h2><details", rows.size() <= 12 ? " open" : "",
             "><summary>", rows.size(), rows.size() == 1 ? " validation" : " validated steps",
             "</summary><div class=\"scroll\"><table><thead><tr><th>step</th>");
  for (const RunRecord& run : runs) {
    out += Concat("<th>", Escape(run.name),
                  "<br>loss</th><th><br>perplexity</th><th><br>bits per byte</th>");
  }
  out += "</tr></thead><tbody>";
  for (const auto& [step, cells] : rows) {
    out += Concat("<tr><th>", step, "</th>");
    for (const ValidationCell& cell : cells) out += ValidationCells(cell);
    out += "</tr>";
  }
  return out + "</tbody></table></div></details></section>";
}

std::string ConfigDifferences(const Runs& runs) {
  if (runs.size() < 2) return "";
  std::set<std::string> names;
  for (const RunRecord& run : runs) {
    for (const auto& [name, value] : run.config) names.insert(name);
  }
  const auto value_of = [](const RunRecord& run, const std::string& name) {
    const auto found = run.config.find(name);
    return found == run.config.end() ? std::string("–") : found->second;
  };
  std::string rows;
  for (const std::string& name : names) {
    std::set<std::string> values;
    for (const RunRecord& run : runs) values.insert(value_of(run, name));
    if (values.size() == 1) continue;
    rows += Concat("<tr><th class=\"code\">", Escape(name), "</th>");
    for (const RunRecord& run : runs) {
      rows += Concat("<td class=\"words code\">", Escape(value_of(run, name)), "</td>");
    }
    rows += "</tr>";
  }
  std::string out = "<section><h2>Where the configs differ</h2>";
  if (rows.empty()) return out + "<p>Nowhere.</p></section>";
  out += "<div class=\"scroll\"><table><thead><tr><th>field</th>";
  for (size_t i = 0; i < runs.size(); ++i)
    out += Concat("<th class=\"words\">", Escape(runs[i].name), "</th>");
  return out + "</tr></thead><tbody>" + rows + "</tbody></table></div></section>";
}

std::vector<std::string> NotesOf(const RunRecord& run) {
  std::vector<std::string> notes;
  if (run.metric("loss").empty()) notes.push_back("No step was trained yet.");
  if (!run.failure.empty()) notes.push_back("Failed: " + run.failure);
  if (!run.resumes.empty()) {
    notes.push_back(
        Concat("Resumed ", run.resumes.size() == 1 ? "once" : Concat(run.resumes.size(), " times"),
               run.resumes.size() == 1 ? ", continuing with step " : ", continuing with steps ",
               Join(run.resumes, ", "), ". ", Counted(run.replayed_steps, "step"),
               " had to be trained again. The numbers shown are those of the last attempt."));
  }
  const auto skipped = static_cast<int64_t>(Sum(run.metric("skipped")).value_or(0));
  if (skipped > 0) {
    notes.push_back(
        Counted(skipped, "step") +
        " did not update the weights, because a loss or gradient was not finite (red marks at the "
        "top edge) or because no row had a target.");
  }
  for (const std::string& banner : run.checkpoint_damage) notes.push_back(banner);
  if (run.damaged_lines > 0) {
    notes.push_back(Counted(run.damaged_lines, "line") +
                    " of metrics.jsonl could not be read and " +
                    (run.damaged_lines == 1 ? "is" : "are") + " omitted.");
  }
  if (!run.config_problem.empty())
    notes.push_back("The config could not be read: " + run.config_problem);
  return notes;
}

std::string Notes(const Runs& runs) {
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const std::string& note : NotesOf(runs[i])) {
      out += Concat("<li>", runs.size() > 1 ? Concat("<b>", Escape(runs[i].name), "</b>: ") : "",
                    Escape(note), "</li>");
    }
  }
  if (out.empty()) return "";
  return Concat("<section><h2>Notes</h2><ul>", out, "</ul></section>");
}

std::string Configs(const Runs& runs) {
  std::string out = "<section><h2>Configs</h2>";
  for (const RunRecord& run : runs) {
    out += Concat("<details><summary>", Escape(run.path.string()),
                  run.build.empty() ? "" : Small("build " + run.build), "</summary><pre>",
                  Escape(run.config_text.empty() ? "no config.textproto" : run.config_text),
                  "</pre></details>");
  }
  return out + "</section>";
}

// Returns the charts by length. Their curves do not belong to runs, so they have their own legend.
std::string ByLength(const std::vector<Evaluation>& evaluations) {
  const std::vector<PlotSpec> plots = ChartsByLength(evaluations);
  if (evaluations.empty()) return "";
  if (plots.empty()) return "<section><h2>By length</h2><p>No row was scored yet.</p></section>";
  std::string out = Concat("<section><h2>By length</h2>", Legend(plots.front().curves), Grid(plots),
                           "</section>");
  for (const Table& table : TablesByLength(evaluations)) out += RenderTable(table);
  return out;
}

void NameApart(Runs& runs) {
  std::map<std::string, int> count;
  for (const RunRecord& run : runs) ++count[run.name];
  for (RunRecord& run : runs) {
    if (count[run.name] > 1) run.name = run.path.string();
  }
}

std::string Document(const std::string& title, const std::string& body, const std::string& made) {
  return Concat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>",
      Escape(title), " – halflife report</title><style>", kPlotStyle, kPageStyle,
      "</style></head>\n<body><header><h1>", Escape(title), "</h1></header>", body, "<footer>",
      Escape(made), "</footer><script>", kPageScript, "</script></body></html>\n");
}

// Draws the curves of the sweep's best runs.
std::string CurvesOfSweep(const SweepRecord& sweep) {
  if (sweep.runs.empty()) return "";
  return Concat(
      "<div><h2>Curves</h2>",
      sweep.runs_note.empty() ? "" : Concat("<p class=\"soft\">", Escape(sweep.runs_note), "</p>"),
      Legend(sweep.runs), ChartSections(LearningCharts(sweep.runs)), "</div>");
}

std::string SweepSections(const SweepRecord& sweep) {
  std::string out;
  if (!sweep.figure.empty())
    out += Concat("<section><h2>Figure</h2>", Legend(sweep.figure.front().curves),
                  Grid(sweep.figure), "</section>");
  if (!sweep.by_axis.empty())
    out += Concat("<section><h2>", Escape(sweep.metric), " by axis</h2>", Grid(sweep.by_axis),
                  "</section>");
  for (const Table& table : sweep.tables) out += RenderTable(table);
  return out + CurvesOfSweep(sweep);
}

// Returns the sections about runs. A legend stays visible next to the charts that it explains, so
// they share an element.
std::string RunSections(const Runs& runs, const std::string& by_length) {
  return Concat("<div>", runs.size() > 1 ? Legend(runs) : "", Summary(runs), Notes(runs),
                ChartSections(Charts(runs)), "</div>", by_length, ValidationTable(runs),
                ConfigDifferences(runs), Configs(runs));
}

// Returns the name of the only sweep or run, or else their numbers: "1 sweep, 2 runs".
std::string Title(const PageContent& content) {
  const auto count = [](const auto& things, const char* name) {
    return Counted(static_cast<int64_t>(things.size()), name);
  };
  const size_t num_sweeps = content.sweeps.size(), num_runs = content.runs.size();
  if (num_sweeps == 0 && num_runs == 0) return count(content.evaluations, "evaluation");
  if (num_sweeps + num_runs == 1)
    return num_sweeps == 1 ? content.sweeps[0].name : content.runs[0].name;
  if (num_sweeps == 0) return count(content.runs, "run");
  return count(content.sweeps, "sweep") + (num_runs == 0 ? "" : ", " + count(content.runs, "run"));
}

}  // namespace

std::string RenderPage(PageContent content, const std::string& made) {
  Runs& runs = content.runs;
  NameApart(runs);
  std::string body;
  const bool is_alone = content.sweeps.size() + runs.size() == 1;
  for (const SweepRecord& sweep : content.sweeps) {
    if (!is_alone) body += Concat("<h1 class=\"part\">Sweep ", Escape(sweep.name), "</h1>");
    body += SweepSections(sweep);
  }
  if (!content.sweeps.empty() && !runs.empty()) body += "<h1 class=\"part\">Other runs</h1>";
  const std::string by_length = ByLength(content.evaluations);
  body += runs.empty() ? by_length : RunSections(runs, by_length);
  return Document(Title(content), body, made);
}

}  // namespace halflife::report

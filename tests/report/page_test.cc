// The report page: numbers, comparisons of runs, sweeps, and escaping.
#include "report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/html.h"

namespace halflife::report {
namespace {

using testing::HasSubstr;
using testing::Not;

RunRecord Trained(const std::string& name, double offset, int steps = 40) {
  RunRecord run;
  run.name = name;
  run.path = "runs/" + name;
  for (int step = 1; step <= steps; ++step) {
    const double loss = offset + 4.0 / step;
    run.metrics["loss"].push_back({1.0 * step, loss});
    run.metrics["tokens_per_s"].push_back({1.0 * step, 1000});
    run.metrics["step_ms"].push_back({1.0 * step, 500});
    run.metrics["data_wait_ms"].push_back({1.0 * step, 5});
    run.metrics["exposed_rows_ms"].push_back({1.0 * step, 0});
    run.metrics["exposed_param_ms"].push_back({1.0 * step, 7});
    if (step % 10 == 0) {
      run.metrics["val_loss"].push_back({1.0 * step, loss});
      run.metrics["val_perplexity"].push_back({1.0 * step, std::exp(loss)});
      run.metrics["val_bits_per_byte"].push_back({1.0 * step, 0.3 * loss});
    }
  }
  run.config = {{"data.path", "d"}, {"model.vocab_size", "259"}, {"optimizer.lr", "0.003"}};
  run.tokens_per_step = 512;
  run.total_steps = steps;
  return run;
}

std::string Page(std::vector<RunRecord> runs) {
  return RenderPage({.runs = std::move(runs)}, "made today");
}

TEST(Escape, LeavesNoMarkupAndNoBrokenBytes) {
  EXPECT_EQ(Escape("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(Escape("é\xff\x01\n"), "é\xEF\xBF\xBD\xEF\xBF\xBD\n");
  EXPECT_EQ(ScriptJson("</script>&\"é"), R"("\u003c/script\u003e\u0026\"\u00e9")");
}

TEST(Page, OneRunHasItsNumbers) {
  const std::string page = Page({Trained("only", 1)});
  EXPECT_THAT(page, HasSubstr("<title>only – halflife report</title>"));
  EXPECT_THAT(page, HasSubstr("<td>1.1000 <small>at 40</small></td><td>3.004</td>"  // e^1.1.
                              "<td>0.3300</td>"));
  EXPECT_THAT(page, HasSubstr("<tr><th>20</th><td>1.2000</td><td>3.32</td><td>0.3600</td></tr>"));
  EXPECT_THAT(page, HasSubstr("<td>20.5k</td>"));  // 40 x 512 tokens.
  EXPECT_THAT(page, HasSubstr("<td>20 s</td>"));
  EXPECT_THAT(page, HasSubstr("Waiting for data, % of a step"));
  EXPECT_THAT(page, HasSubstr("Waiting for parameters of other ranks"));
  EXPECT_THAT(page, Not(HasSubstr("Waiting for the other slices")));  // It never waits for them.
  EXPECT_THAT(page, Not(HasSubstr("Learning rate")));                 // The run has no such metric.
  EXPECT_THAT(page, Not(HasSubstr("Where the configs differ")));
  EXPECT_THAT(page, HasSubstr("made today"));
}

TEST(Page, PairsOfAnswersHaveNoPerplexity) {
  RunRecord run = Trained("dpo", 1);
  run.metrics.erase("val_perplexity");
  run.metrics["reward_margin"] = {{1, 0.0}, {40, 0.5}};
  const std::string page = Page({run});
  EXPECT_THAT(page, HasSubstr("<td>1.1000 <small>at 40</small></td><td>–</td>"));
  EXPECT_THAT(page, HasSubstr("<tr><th>20</th><td>1.2000</td><td>–</td>"));
  EXPECT_THAT(page, Not(HasSubstr("nats per token")));
  EXPECT_THAT(page, HasSubstr("Reward of the chosen answer minus that of the rejected one"));
}

TEST(Page, FetchesNothing) {
  const std::string page = Page({Trained("only", 1)});
  EXPECT_THAT(
      page,
      HasSubstr(
          "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\""));
  for (const char* piece : {"http://", "https://", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(piece)));
  }
}

TEST(Page, RunsAreComparedWhereTheyCanBe) {
  RunRecord a = Trained("a", 1), b = Trained("b", 2);
  b.config["optimizer.lr"] = "0.01";
  const std::string page = Page({a, b});
  EXPECT_THAT(page, HasSubstr("<td class=\"best\">1.1000"));
  EXPECT_THAT(page, Not(HasSubstr("<td class=\"best\">2.1000")));
  EXPECT_THAT(page, HasSubstr("optimizer.lr</th><td class=\"words code\">0.003</td><td "
                              "class=\"words code\">0.01</td>"));
  EXPECT_THAT(page, Not(HasSubstr("data.path</th>")));
  EXPECT_THAT(page, Not(HasSubstr("do not compare")));

  b.config["model.vocab_size"] = "32000";
  const std::string apart = Page({a, b});
  EXPECT_THAT(apart, HasSubstr("do not compare"));
  EXPECT_THAT(apart, Not(HasSubstr("class=\"best\"")));
}

// A run without bits per byte, together with one that has them.
TEST(Page, ARunWithoutBitsPerByteHasADash) {
  RunRecord old = Trained("old", 1);
  old.metrics.erase("val_bits_per_byte");
  old.metrics["val_loss"][0].y = old.metrics["val_perplexity"][0].y = std::nan("");
  EXPECT_THAT(Page({Trained("new", 1), old}),
              HasSubstr("<tr><th>10</th><td>1.4000</td><td>4.055</td><td>0.4200</td>"
                        "<td>not finite</td><td>–</td><td>–</td></tr>"));
}

SweepRecord Sweep(const std::string& name) {
  const PlotSpec figure = {.title = "figure <1>",
                           .note = "",
                           .curves = {{.name = "a<b", .points = {{1, 2}, {2, 1}}, .resumes = {}}},
                           .rules = {}};
  PlotSpec by_axis = figure;
  by_axis.title = "val_loss over lr";
  return {.name = name,
          .metric = "val_loss",
          .figure = {figure},
          .by_axis = {by_axis},
          .tables = {{.title = "Runs of it",
                      .header = {"run", "val_loss"},
                      .rows = {{"lr=1", "2.5"}, {"lr=2", "–"}},
                      .links = {"sweeps/s/runs/lr=1/", ""}}},
          .runs = {Trained("lr=1", 1)},
          .runs_note = "Curves of 1 of 2 runs."};
}

TEST(Page, ASweepHasItsPlotsItsTablesAndTheCurvesOfItsRuns) {
  const std::string page = RenderPage({.sweeps = {Sweep("zoo")}}, "made today");
  EXPECT_THAT(page, HasSubstr("<title>zoo – halflife report</title>"));
  EXPECT_THAT(page, HasSubstr("<b>figure &lt;1&gt;</b>"));
  EXPECT_THAT(page, HasSubstr("<h2>val_loss by axis</h2>"));
  EXPECT_THAT(page, HasSubstr("<b>val_loss over lr</b>"));
  EXPECT_THAT(page, HasSubstr("<a href=\"sweeps/s/runs/lr=1/\">lr=1</a>"));
  EXPECT_THAT(page, HasSubstr("Curves of 1 of 2 runs."));
  EXPECT_THAT(page, HasSubstr("<b>Training loss, nats per token</b>"));
  EXPECT_THAT(page, Not(HasSubstr("Tokens per second")));  // Only what was learned.
  EXPECT_THAT(page, Not(HasSubstr("class=\"part\"")));
  EXPECT_THAT(page, HasSubstr("made today"));
}

TEST(Page, SweepsRunsAndEvaluationsShareAPage) {
  const Evaluation evaluation = ParseEvaluation(
      R"({"model": "m", "train_len": 8,
          "rows": [{"method": "plain", "length": 8, "perplexity": 3.5}]})",
      "m.json");
  const std::string page = RenderPage({.sweeps = {Sweep("zoo"), Sweep("lengths")},
                                       .runs = {Trained("alone", 1)},
                                       .evaluations = {evaluation}},
                                      "made today");
  EXPECT_THAT(page, HasSubstr("<title>2 sweeps, 1 run – halflife report</title>"));
  EXPECT_THAT(page, HasSubstr("<h1 class=\"part\">Sweep zoo</h1>"));
  EXPECT_THAT(page, HasSubstr("<h1 class=\"part\">Sweep lengths</h1>"));
  EXPECT_THAT(page, HasSubstr("<h1 class=\"part\">Other runs</h1>"));
  EXPECT_THAT(page, HasSubstr("</svg>alone</th>"));
  EXPECT_THAT(page, HasSubstr("<h2>By length</h2>"));
}

// A sweep without any finished run.
TEST(Page, ASweepWithoutRunsIsAPage) {
  const std::string page = RenderPage({.sweeps = {{.name = "begun", .metric = "val_loss"}}}, "now");
  EXPECT_THAT(page, HasSubstr("<title>begun"));
  EXPECT_THAT(page, Not(HasSubstr("by axis")));
}

TEST(UrlOfPath, KeepsALinkInsideItsAttributeAndItsPath) {
  EXPECT_EQ(UrlOfPath("../runs/mixer=gla,lr=1e-3/"), "../runs/mixer=gla,lr=1e-3/");
  EXPECT_EQ(UrlOfPath("a b\"<&>#?%:é"), "a%20b%22%3C%26%3E%23%3F%25%3A%C3%A9");
}

TEST(Page, StepsOfDifferentSizeAreComparedByTokens) {
  RunRecord a = Trained("a", 1), b = Trained("b", 1);
  EXPECT_THAT(Page({a, b}), HasSubstr("\"x\":\"step\""));
  b.tokens_per_step = 1024;
  EXPECT_THAT(Page({a, b}), Not(HasSubstr("\"x\":\"step\"")));
}

TEST(Page, TheLossIsShownOverTimeWhereItIsKnown) {
  RunRecord run = Trained("timed", 1);
  EXPECT_THAT(Page({run}), Not(HasSubstr("of training\"")));
  EXPECT_THAT(Page({run}),
              HasSubstr("<td>20 s</td><td>–</td>"));  // The steps took 20 s, the total is unknown.
  for (int step = 1; step <= 40; ++step) {
    run.metrics["elapsed_s"].push_back({1.0 * step, 30.0 * step});
  }
  run.elapsed_s = 1230;  // Part of the time was lost.
  run.resumes = {21};
  const std::string page = Page({run});
  EXPECT_THAT(page, HasSubstr("<td>20 s</td><td>20 min 30 s</td>"));
  EXPECT_THAT(page, HasSubstr("Training loss by time"));
  EXPECT_THAT(page, HasSubstr("Validation loss by time"));
  EXPECT_THAT(page,
              HasSubstr("\"low\":0.5,\"high\":20,\"log\":false,\"x\":\"minutes of training\""));
  EXPECT_THAT(page, HasSubstr("\"x\":[5,10,15,20]"));  // Validated at 10, 20, 30, 40.
  EXPECT_THAT(page, HasSubstr("resumed at minutes of training 10.5"));
}

// A run that an older version started. Missing times are not invented.
TEST(Page, TimeThatIsKnownFromAStepOnSaysSo) {
  RunRecord run = Trained("upgraded", 1);
  for (int step = 31; step <= 40; ++step) {
    run.metrics["elapsed_s"].push_back({1.0 * step, 1.0 * (step - 30)});
  }
  run.elapsed_s = 10;
  EXPECT_THAT(Page({run}), HasSubstr("<td>10 s <small>from step 31</small></td>"));
}

TEST(Charts, AShareIsOfTheSameStep) {
  RunRecord run = Trained("upgraded", 1);
  run.metrics["data_wait_ms"].erase(run.metrics["data_wait_ms"].begin(),
                                    run.metrics["data_wait_ms"].begin() + 30);
  for (int step = 31; step <= 40; ++step)
    run.metrics["step_ms"][static_cast<size_t>(step - 1)].y = 1000;
  int met = 0;
  for (const ChartGroup& group : Charts({run})) {
    for (const PlotSpec& plot : group.plots) {
      if (!plot.title.starts_with("Waiting for data")) continue;
      for (const Point& point : plot.curves.at(0).points) {
        EXPECT_DOUBLE_EQ(point.y, 0.5) << point.x;
        ++met;
      }
    }
  }
  EXPECT_GT(met, 0);
}

TEST(Page, RunsOfOneNameGoByTheirPaths) {
  RunRecord a = Trained("same", 1), b = Trained("same", 1);
  a.path = "x/same";
  b.path = "y/same";
  const std::string page = Page({a, b});
  EXPECT_THAT(page, HasSubstr("<li><svg"));
  EXPECT_THAT(page, HasSubstr("x/same</li>"));
  EXPECT_THAT(page, HasSubstr("y/same</li>"));
}

TEST(Page, ProblemsAreReported) {
  RunRecord run = Trained("bad", 1);
  run.failure = "rank 1: <out of memory>";
  run.resumes = {11, 31};
  run.replayed_steps = 7;
  run.damaged_lines = 1;
  run.metrics["skipped"] = {{3, 1}, {4, 0}, {5, 1}};
  run.checkpoint_damage = {"CHECKPOINT step 10 DAMAGED"};
  run.config_problem = "config.textproto:1:9: no";
  const std::string page = Page({run});
  for (const char* piece :
       {"Failed: rank 1: &lt;out of memory&gt;",
        "Resumed 2 times, continuing with steps 11, 31. 7 steps",
        "2 steps did not update the weights, because", "1 line of metrics.jsonl",
        "CHECKPOINT step 10 DAMAGED", "The config could not be read: config.textproto:1:9: no",
        "status-failed"}) {
    EXPECT_THAT(page, HasSubstr(piece));
  }
}

TEST(Page, AnEmptyRunIsAPageToo) {
  RunRecord run;
  run.name = "empty";
  run.path = "runs/empty";
  const std::string page = Page({run});
  EXPECT_THAT(page, HasSubstr("No step was trained yet."));
  EXPECT_THAT(page, HasSubstr("no finite value yet"));
}

TEST(Page, EverythingFromFilesIsEscaped) {
  const std::string evil = "<img onerror=x>";
  RunRecord run = Trained(evil, 1), other = Trained("b", 1);
  run.path = evil;
  run.model = evil;
  run.failure = evil;
  run.config["optimizer.lr"] = evil;
  run.config[evil] = "1";
  run.config_text = evil;
  run.config_problem = evil;
  run.checkpoint_damage = {evil};
  run.build = evil;
  run.last_alive = evil;
  for (const bool failed : {true, false}) {
    if (!failed) run.failure = "";
    EXPECT_THAT(Page({run, other}), Not(HasSubstr("<img")));
    EXPECT_THAT(Page({run}), Not(HasSubstr("<img")));
  }
}

}  // namespace
}  // namespace halflife::report

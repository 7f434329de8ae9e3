// `halflife report` on real runs, and its page in a real browser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "core/files.h"
#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

class Report : public ProgramTest {
 protected:
  // "gla" was killed after step 12 and resumed from step 10, which was saved in the foreground.
  // "retention" is unfinished: it stopped after 5 of 20 steps.
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    const std::vector<std::string> set = {"eval.every=5", "ckpt.background=false"};
    ExpectExit(
        fixture->Run({.run = "gla", .set = set, .env = {{"HL_FAULT", "train.step:kill:13"}}}), 137);
    ExpectExit(fixture->Run({.run = "gla", .set = set}), 0);
    ExpectExit(fixture->Run({.run = "retention",
                             .set = {"model.mixer=retention", "optimizer.lr=1e-3"},
                             .env = {{"HL_FAULT", "train.step:kill:6"}}}),
               137);
    std::ofstream(fixture->path("retention") / "metrics.jsonl", std::ios::app)
        << R"({"step":6,"lo)";
  }

  static std::string MakePage(std::vector<std::string> runs) {
    std::vector<std::string> arguments = {"report"};
    for (const std::string& run : runs) arguments.push_back(fixture->path(run));
    const std::string page = fixture->path("report.html");
    arguments.insert(arguments.end(), {"--out", page});
    ExpectExit(Halflife(arguments), 0);
    return page;
  }
  static RunResult Chromium(const std::vector<std::string>& options, const std::string& page) {
    std::vector<std::string> command =
        Append({"chromium", "--headless", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--user-data-dir=" + Path("browser"),
                "--enable-logging=stderr", "--virtual-time-budget=2000"},
               options);
    command.push_back("file://" + page);
    RunResult result = RunCommand(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  // Returns the page's document after its scripts ran. `console` receives the browser's messages.
  static std::string Browse(const std::string& page, std::string* console,
                            std::vector<std::string> options = {}) {
    options.emplace_back("--dump-dom");
    const RunResult result = Chromium(options, page);
    std::istringstream lines(result.err);
    for (std::string line; std::getline(lines, line);) {
      if (line.find(":CONSOLE") != std::string::npos) *console += line + "\n";
    }
    return result.out;
  }
  // Takes a screenshot of the page and decodes it. Returns the width, the height, the number of
  // colours, and for each of `curves` (red, green, blue) the columns that contain the colour.
  static nlohmann::json Look(const std::string& page, const nlohmann::json& curves) {
    const std::string picture = page + ".png", looker = page + ".look.html";
    fs::remove(picture);
    Chromium({"--hide-scrollbars", "--window-size=1320,1800", "--screenshot=" + picture}, page);
    std::ofstream(looker) << "<body><img src='file://" << picture
                          << "'><script>const curves = " << curves << R"(;
      addEventListener('load', () => {
        const image = document.querySelector('img'), canvas = document.createElement('canvas');
        const width = canvas.width = image.naturalWidth;
        const height = canvas.height = image.naturalHeight;
        const context = canvas.getContext('2d');
        context.drawImage(image, 0, 0);
        const bytes = context.getImageData(0, 0, width, height).data;
        const colours = new Set(), columns = curves.map(() => new Set());
        for (let i = 0; i < bytes.length; i += 4) {
          colours.add(bytes[i] << 16 | bytes[i + 1] << 8 | bytes[i + 2]);
          curves.forEach((curve, k) => {
            if (curve.every((part, c) => Math.abs(bytes[i + c] - part) < 8)) {
              columns[k].add(i / 4 % width);
            }
          });
        }
        document.body.append('PICTURE' + JSON.stringify({width, height, colours: colours.size,
                                                         columns: columns.map((set) => set.size)}));
      });</script></body>)";
    std::string console;
    const std::string dom = Browse(looker, &console, {"--allow-file-access-from-files"});
    EXPECT_EQ(console, "");
    const size_t begin = dom.rfind("PICTURE{"), end = dom.find('}', begin);
    if (end == std::string::npos) {
      ADD_FAILURE() << "the picture was not decoded: " << dom;
      return {};
    }
    return nlohmann::json::parse(dom.substr(begin + 7, end - begin - 6));
  }
  static bool HaveBrowser() { return RunCommand({"chromium", "--version"}).exit_code == 0; }
  static std::string With(const std::string& page, const std::string& html) {
    std::string text = ReadFile(page, ExitCode::kInternal);
    text.insert(text.rfind("</body>"), html);
    const std::string copy = page + ".changed.html";
    std::ofstream(copy) << text;
    return copy;
  }
};

TEST_F(Report, AnUnwritablePageIsAnError) {
  ExpectExit(Halflife({"report", Path("gla"), "--out", "/no/x.html"}), 4, {"/no/x.html"});
}

// Evaluations are drawn with the runs, or in a plot of their own.
TEST_F(Report, EvaluationsByLengthAreDrawn) {
  const std::string table = fixture->path("lengths.json");
  ExpectExit(Halflife({"eval", "--model", Path("gla"), "--data", Path("data"), "--windows", "1",
                       "--lengths", "32,64", "--out", table}),
             0);
  const std::string page = ReadFile(MakePage({"gla", "lengths.json"}), ExitCode::kInternal);
  EXPECT_THAT(page, HasSubstr("<h2>By length</h2>"));
  EXPECT_THAT(page, HasSubstr("Perplexity by tokens of a row</h2>"));
  const std::string picture = fixture->path("lengths.svg");
  ExpectExit(Halflife({"report", table, "--out", picture}), 0);
  EXPECT_TRUE(ReadFile(picture, ExitCode::kInternal).starts_with("<svg"));
  ExpectExit(Halflife({"report", Path("gla"), "--out", Path("none.svg")}), 2,
             {"a picture shows perplexity by length"});
  EXPECT_FALSE(fs::exists(fixture->path("none.svg")));
}

TEST_F(Report, TheBrowserShowsTheNumbersAndHasNothingToSay) {
  if (!HaveBrowser()) GTEST_SKIP() << "no chromium here (Debian: chromium)";
  std::string console;
  const std::string page = Browse(MakePage({"gla", "retention"}), &console);
  EXPECT_EQ(console, "");
  for (const auto& line : fixture->Metrics("gla", "val_loss")) {
    char text[32];
    std::snprintf(text, sizeof text, "<td>%.4f</td>", line["val_loss"].get<double>());
    EXPECT_THAT(page, HasSubstr(text));
  }
  for (const char* piece :
       {"Resumed once, continuing with step 11. 2 steps had to be trained again.",
        "status-finished\">finished", "not finished", ">20 <small>of 20</small>",
        ">5 <small>of 20</small>", "model.mixer", "optimizer.lr"}) {
    EXPECT_THAT(page, HasSubstr(piece));
  }
  EXPECT_THAT(page, Not(HasSubstr("No step was trained")));
}

// The check above must detect both kinds of faults.
TEST_F(Report, TheBrowserDetectsFaultsAndRequests) {
  if (!HaveBrowser()) GTEST_SKIP() << "no chromium here (Debian: chromium)";
  const std::string page = MakePage({"gla"});
  std::string fault, request;
  Browse(With(page, "<script>no.such.thing</script>"), &fault);
  EXPECT_THAT(fault, HasSubstr("ReferenceError"));
  Browse(With(page, "<img src='http://127.0.0.1:9/x.png'>"), &request);
  EXPECT_THAT(request, HasSubstr("Content Security Policy"));
}

// Curves in the document must also be visible: a curve is wider than its key in the legend.
TEST_F(Report, TheCurvesAreInThePicture) {
  if (!HaveBrowser()) GTEST_SKIP() << "no chromium here (Debian: chromium)";
  const nlohmann::json colours = {{0x00, 0x72, 0xb2}, {0xd5, 0x5e, 0x00}};  // --s0, --s1
  const auto both = Look(MakePage({"gla", "retention"}), colours);
  EXPECT_EQ(both["width"], 1320);
  EXPECT_EQ(both["height"], 1800);
  EXPECT_GT(both["colours"], 100) << both;
  EXPECT_GT(both["columns"][0], 300);
  EXPECT_GT(both["columns"][1], 100);
  const auto hidden =
      Look(With(MakePage({"gla", "retention"}), "<style>.line, .band { display: none }</style>"),
           colours);
  EXPECT_LT(hidden["columns"][0], 300);
  EXPECT_LT(hidden["columns"][1], 100);
  const auto one = Look(MakePage({"gla"}), colours);
  EXPECT_GT(one["columns"][0], 300);
  EXPECT_EQ(one["columns"][1], 0);
  std::ofstream(fixture->path("blank.html")) << "<body></body>";
  EXPECT_EQ(Look(Path("blank.html"), colours)["colours"], 1);
}

TEST_F(Report, ThePointerShowsTheNumbersUnderIt) {
  if (!HaveBrowser()) GTEST_SKIP() << "no chromium here (Debian: chromium)";
  std::string console;
  const std::string page = Browse(With(MakePage({"gla", "retention"}), R"(<script>
    const svg = document.querySelector('figure svg'), box = svg.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width * 0.995}));
    const tip = document.querySelector('.tip:not([hidden])');
    document.body.append('TIP[' + (tip ? tip.textContent : 'none') + ']');
    </script>)"),
                                  &console);
  EXPECT_EQ(console, "");
  char last[64];
  std::snprintf(last, sizeof last, "TIP[step 20gla  %.4g",
                fixture->Metrics("gla", "loss").back()["loss"].get<double>());
  EXPECT_THAT(page, HasSubstr(last)) << last << "\n" << page.substr(page.find("TIP["), 200);
}

}  // namespace
}  // namespace halflife::test

#include "report/plot.h"

#include "core/concat.h"
#include "report/html.h"

namespace halflife::report {
namespace {

constexpr double kMargin = 16, kTitle = 26, kLegend = 24, kKeyWidth = 38, kLetter = 7.2;

double TextWidth(const std::string& text) { return kLetter * static_cast<double>(text.size()); }

// Arranges the entries in rows of the given width. Sets `bottom` to the lower end.
std::string Legend(const std::vector<Curve>& curves, double width, double& bottom) {
  std::string out;
  double x = kMargin, y = kMargin;
  for (const Curve& curve : curves) {
    const double entry = kKeyWidth + TextWidth(curve.name) + kMargin;
    if (x + entry > width && x > kMargin) {
      x = kMargin;
      y += kLegend;
    }
    out += Concat("<svg x=\"", x, "\" y=\"", y - 2, "\" width=\"30\" height=\"12\">",
                  StyleKey(curve.style), "</svg><text class=\"label\" x=\"", x + kKeyWidth,
                  "\" y=\"", y + 8, "\">", Escape(curve.name), "</text>");
    x += entry;
  }
  bottom = y + kLegend;
  return out;
}

}  // namespace

std::string StyleKey(int style) {
  return Concat("<path class=\"line s", style % kNumStyles, style >= kNumStyles ? " dashed" : "",
                "\" d=\"M1,6H29\"/><g class=\"marks s", style % kNumStyles, "\">",
                MarkerShape(style, 15, 6), "</g>");
}

std::string RenderFigure(const std::vector<PlotSpec>& plots) {
  const size_t columns = plots.size() > 1 ? 2 : 1;
  const double width = static_cast<double>(columns) * (kPlotWidth + kMargin) + kMargin;
  const auto nothing = [](double x, double y) {
    return Concat("<text class=\"label\" x=\"", x, "\" y=\"", y, "\">no value yet</text>");
  };
  double top = 0;
  std::string out =
      plots.empty() ? nothing(kMargin, kTitle) : Legend(plots.front().curves, width, top);
  for (size_t i = 0; i < plots.size(); ++i) {
    const double x = kMargin + static_cast<double>(i % columns) * (kPlotWidth + kMargin);
    out += Concat("<text class=\"title\" x=\"", x, "\" y=\"", top + 16, "\">",
                  Escape(plots[i].title), "</text>");
    const std::string drawing =
        RenderDrawing(plots[i], Concat("x=\"", x, "\" y=\"", top + kTitle, "\" width=\"",
                                       kPlotWidth, "\" height=\"", kPlotHeight, "\""));
    out += drawing.empty() ? nothing(x, top + 60) : drawing;
    if (i % columns == columns - 1 || i + 1 == plots.size()) top += kTitle + kPlotHeight;
  }
  if (!plots.empty())
    out += Concat("<text class=\"label\" x=\"", kMargin, "\" y=\"", top + kMargin, "\">",
                  Escape(plots.front().note), "</text>");
  const double height = top + 2 * kMargin;
  return Concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height,
                "\" width=\"", width, "\" height=\"", height,
                "\" font-family=\"system-ui, sans-serif\"><style>", kPlotStyle,
                "svg .title { font-size: 14px; font-weight: 600; fill: var(--text); } "
                "svg .label { fill: var(--text); } .cursor { visibility: hidden; }</style>"
                "<rect width=\"100%\" height=\"100%\" fill=\"var(--page)\"/>",
                out, "</svg>\n");
}

}  // namespace halflife::report

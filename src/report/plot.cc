#include "report/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/concat.h"
#include "core/human.h"
#include "report/axis.h"
#include "report/html.h"

namespace halflife::report {
namespace {

// Lengths are in the SVG's own units, which are CSS pixels at the width of a column.
constexpr double kLeft = 56, kRight = 588, kTop = 14, kBottom = 232;
constexpr int kNumBuckets = 180;          // About one per 3 pixels.
constexpr double kTickLetterWidth = 6.6;  // Mean width of a letter at the size of tick labels.

struct DrawnCurve {
  const Curve* curve = nullptr;
  std::vector<Bucket> buckets;
};

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}
std::string At(double x, double y) { return Number(x) + "," + Number(y); }

bool Fits(double value, Scale scale) {
  return std::isfinite(value) && (scale == Scale::kLinear || value > 0);
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void Add(double value, Scale scale) {
    if (!Fits(value, scale)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

// Returns the range of x with a margin, so that the markers of a cloud are not on the frame.
Range PaddedForCloud(Range range, Scale scale) {
  constexpr double kPart = 0.04;
  if (range.low == range.high) return range;
  if (scale == Scale::kLog) {
    const double factor = std::pow(range.high / range.low, kPart);
    return {.low = range.low / factor, .high = range.high * factor};
  }
  const double margin = kPart * (range.high - range.low);
  return {.low = range.low - margin, .high = range.high + margin};
}

// Extends the range by 4 % in both directions, so that no line is on the frame.
Axis PaddedAxis(Range range, const PlotSpec& spec) {
  if (spec.y_scale == Scale::kLog) {
    const double factor = std::pow(std::max(range.high / range.low, 1.1), 0.04);
    return Axis(range.low / factor, range.high * factor, Scale::kLog, kBottom, kTop);
  }
  const bool zero = spec.y_from_zero && range.low >= 0;
  if (zero && range.high == 0) range.high = 1;
  const double margin = 0.04 * (range.high - (zero ? 0 : range.low));
  return Axis(zero ? 0 : range.low - margin, range.high + margin, Scale::kLinear, kBottom, kTop);
}

class Chart {
 public:
  Chart(const PlotSpec& spec, Axis x, Axis y, std::vector<DrawnCurve> curves)
      : spec_(spec), x_(std::move(x)), y_(std::move(y)), curves_(std::move(curves)) {}

  std::string Svg(const std::string& attributes) const {
    std::string out = Concat("<svg ", attributes, "viewBox=\"0 0 ", kPlotWidth, " ",
                             kPlotHeight + SlantedHeight(), "\" role=\"img\" aria-label=\"",
                             Escape(spec_.title), "\">");
    out += Grid();
    for (const Rule& rule : spec_.rules) out += RuleLine(rule);
    for (const DrawnCurve& drawn : curves_) out += ResumeMarks(*drawn.curve);
    for (const DrawnCurve& drawn : curves_) out += Band(drawn);
    for (const DrawnCurve& drawn : curves_) out += ErrorBars(*drawn.curve);
    for (const DrawnCurve& drawn : curves_) out += Line(drawn);
    for (const DrawnCurve& drawn : curves_) out += Markers(drawn);
    return out + "<line class=\"cursor\" y1=\"" + Number(kTop) + "\" y2=\"" + Number(kBottom) +
           "\"/></svg>";
  }

  // {"left":..,"right":..,"low":..,"high":..,"log":..,"x":"step",
  //  "categories":["a","b"],"curves":[{"name","style","x","y","lo","hi"}]}
  std::string HoverData() const {
    nlohmann::ordered_json data = {{"left", kLeft},
                                   {"right", kRight},
                                   {"low", Rounded(x_.low())},
                                   {"high", Rounded(x_.high())},
                                   {"log", x_.scale() == Scale::kLog},
                                   {"x", spec_.x_name}};
    if (!spec_.categories.empty()) data["categories"] = spec_.categories;
    data["curves"] = nlohmann::ordered_json::array();
    for (const DrawnCurve& drawn : curves_) {
      if (drawn.curve->cloud) continue;
      nlohmann::ordered_json curve = {{"name", drawn.curve->name},
                                      {"style", drawn.curve->style % kNumStyles},
                                      {"x", Values(drawn, &Bucket::x)},
                                      {"y", Values(drawn, &Bucket::mean)}};
      if (IsReduced(drawn)) {
        curve["lo"] = Values(drawn, &Bucket::low);
        curve["hi"] = Values(drawn, &Bucket::high);
      }
      data["curves"].push_back(std::move(curve));
    }
    return ScriptJson(data);
  }

  // Returns for example "line: mean of up to 12 points, band: lowest to highest of them", with the
  // largest number of points in a bucket. Empty if all points are drawn.
  std::string ReductionNote() const {
    int64_t most = 1;
    for (const DrawnCurve& drawn : curves_) {
      for (const Bucket& bucket : drawn.buckets) most = std::max(most, bucket.num_points);
    }
    if (most == 1) return "";
    return Concat("line: mean of up to ", most, " points, band: lowest to highest of them");
  }

  static bool IsReduced(const DrawnCurve& drawn) {
    return std::any_of(drawn.buckets.begin(), drawn.buckets.end(),
                       [](const Bucket& bucket) { return bucket.num_points > 1; });
  }

 private:
  // Returns the value with six digits, which shortens the page. Null if it is not finite.
  static nlohmann::ordered_json Rounded(double value) {
    if (!std::isfinite(value)) return nullptr;
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    return nlohmann::ordered_json::parse(text);
  }
  static nlohmann::ordered_json Values(const DrawnCurve& drawn, double Bucket::*member) {
    auto values = nlohmann::ordered_json::array();
    for (const Bucket& bucket : drawn.buckets) values.push_back(Rounded(bucket.*member));
    return values;
  }

  std::string Grid() const {
    std::string out = "<g class=\"grid\">";
    for (const Tick& tick : y_.Ticks(5)) {
      const std::string y = Number(y_.Pixel(tick.value));
      out += Concat("<line", tick.label.empty() ? " class=\"minor\"" : "", " x1=\"", Number(kLeft),
                    "\" x2=\"", Number(kRight), "\" y1=\"", y, "\" y2=\"", y, "\"/>");
      if (tick.label.empty()) continue;
      out += Concat("<text class=\"y\" x=\"", Number(kLeft - 7), "\" y=\"", y, "\">", tick.label,
                    "</text>");
    }
    for (const Tick& tick : XTicks()) {
      const std::string x = Number(x_.Pixel(tick.value));
      const double length = tick.label.empty() ? 3 : 5;
      out += Concat("<line class=\"tick\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", Number(kBottom),
                    "\" y2=\"", Number(kBottom + length), "\"/>");
      if (tick.label.empty()) continue;
      const std::string y = Number(kBottom + 18);
      out += SlantedHeight() > 0 ? Concat("<text class=\"slanted\" transform=\"translate(", x, ",",
                                          y, ") rotate(-30)\">", Escape(tick.label), "</text>")
                                 : Concat("<text class=\"x\" x=\"", x, "\" y=\"", y, "\">",
                                          Escape(tick.label), "</text>");
    }
    out += Concat("<line class=\"axis\" x1=\"", Number(kLeft), "\" x2=\"", Number(kRight),
                  "\" y1=\"", Number(kBottom), "\" y2=\"", Number(kBottom), "\"/>");
    out += Concat("<text class=\"name\" x=\"", Number(kRight), "\" y=\"",
                  Number(kBottom + 34 + SlantedHeight()), "\">", Escape(spec_.x_name),
                  x_.scale() == Scale::kLog ? " (logarithmic)" : "", "</text></g>");
    return out;
  }

  // Returns the height below the chart that category names need if they are too long to be
  // horizontal, else 0.
  double SlantedHeight() const {
    size_t longest = 0;
    for (const std::string& name : spec_.categories) longest = std::max(longest, name.size());
    const double width = kTickLetterWidth * static_cast<double>(longest);
    const double room =
        (kRight - kLeft) / static_cast<double>(std::max<size_t>(1, spec_.categories.size()));
    return width <= room ? 0 : width / 2;  // sin 30 degrees = 1/2
  }

  std::vector<Tick> XTicks() const {
    std::vector<Tick> names;
    for (const std::string& name : spec_.categories)
      names.push_back({static_cast<double>(names.size()), name});
    if (!names.empty()) return names;
    if (spec_.x_ticks.empty()) return x_.Ticks(6);
    std::vector<Tick> ticks;
    for (const double value : spec_.x_ticks)
      if (value >= x_.low() && value <= x_.high()) ticks.push_back({value, ShortNumber(value)});
    return ticks;
  }

  std::string ErrorBars(const Curve& curve) const {
    std::string path;
    for (size_t i = 0; i < curve.spread.size(); ++i) {
      const auto [x, y] = curve.points[i];
      const double low = std::max(y - curve.spread[i], y_.low());
      const double high = std::min(y + curve.spread[i], y_.high());
      if (curve.spread[i] <= 0 || !Fits(x, x_.scale()) || !std::isfinite(y)) continue;
      path += Concat("M", At(x_.Pixel(x), y_.Pixel(low)), "V", Number(y_.Pixel(high)));
    }
    if (path.empty()) return "";
    return Concat("<path class=\"line s", curve.style % kNumStyles, "\" d=\"", path, "\"/>");
  }

  std::string RuleLine(const Rule& rule) const {
    const double y = y_.Pixel(rule.y);
    return Concat("<g class=\"rule\"><line x1=\"", Number(kLeft), "\" x2=\"", Number(kRight),
                  "\" y1=\"", Number(y), "\" y2=\"", Number(y), "\"/><text x=\"",
                  Number(kRight - 4), "\" y=\"", Number(y - 5), "\">", Escape(rule.label),
                  "</text></g>");
  }

  std::string ResumeMarks(const Curve& curve) const {
    std::string out;
    for (const double resume : curve.resumes) {
      if (!Fits(resume, x_.scale()) || resume < x_.low() || resume > x_.high()) continue;
      const std::string x = Number(x_.Pixel(resume));
      out += Concat("<line class=\"resume s", curve.style % kNumStyles, "\" x1=\"", x, "\" x2=\"",
                    x, "\" y1=\"", Number(kTop), "\" y2=\"", Number(kBottom), "\"><title>",
                    Escape(curve.name), ": resumed at ", Escape(spec_.x_name), " ",
                    ShortNumber(resume), "</title></line>");
    }
    return out;
  }

  std::string Band(const DrawnCurve& drawn) const {
    if (!IsReduced(drawn)) return "";
    std::string out;
    const auto flush = [&](std::string& upper, std::vector<std::string>& lower) {
      if (lower.size() > 1) {
        out += Concat("M", upper);
        for (auto point = lower.rbegin(); point != lower.rend(); ++point)
          out += Concat("L", *point);
        out += "Z";
      }
      upper.clear();
      lower.clear();
    };
    std::string upper;
    std::vector<std::string> lower;
    for (const Bucket& bucket : drawn.buckets) {
      if (!Fits(bucket.low, y_.scale())) {
        flush(upper, lower);
        continue;
      }
      const double x = x_.Pixel(bucket.x);
      upper += Concat(upper.empty() ? "" : "L", At(x, y_.Pixel(bucket.high)));
      lower.push_back(At(x, y_.Pixel(bucket.low)));
    }
    flush(upper, lower);
    return Concat("<path class=\"band s", drawn.curve->style % kNumStyles, "\" d=\"", out, "\"/>");
  }

  std::string Line(const DrawnCurve& drawn) const {
    if (!drawn.curve->line || drawn.curve->cloud) return "";
    std::string path;
    bool open = false;
    for (const Bucket& bucket : drawn.buckets) {
      if (!Fits(bucket.mean, y_.scale())) {
        open = false;
        continue;
      }
      path += Concat(open ? "L" : "M", At(x_.Pixel(bucket.x), y_.Pixel(bucket.mean)));
      open = true;
    }
    return Concat("<path class=\"line s", drawn.curve->style % kNumStyles,
                  drawn.curve->style >= kNumStyles ? " dashed" : "", "\" d=\"", path, "\"/>");
  }

  // Always marks the last point. Other points are marked if requested, or if no line would show
  // them. Non-finite values are also marked.
  std::string Markers(const DrawnCurve& drawn) const {
    std::string out = Concat("<g class=\"marks ", drawn.curve->cloud ? "cloud " : "", "s",
                             drawn.curve->style % kNumStyles, "\">");
    const std::vector<Bucket>& buckets = drawn.buckets;
    const auto fits = [&](size_t i) {
      return i < buckets.size() && Fits(buckets[i].mean, y_.scale());
    };
    std::optional<size_t> last;
    for (size_t i = 0; i < buckets.size(); ++i) {
      const Bucket& bucket = buckets[i];
      const double x = x_.Pixel(bucket.x);
      if (bucket.num_nonfinite > 0) {
        out += Concat("<path class=\"nonfinite\" d=\"M", At(x - 4, kTop - 8), "h8l-4,7Z\"><title>",
                      Escape(drawn.curve->name), ": not finite at ", Escape(spec_.x_name), " ",
                      ShortNumber(bucket.x), "</title></path>");
      }
      if (!fits(i)) continue;
      last = i;
      const bool alone = !fits(i + 1) && (i == 0 || !fits(i - 1));
      if (spec_.markers || alone || !drawn.curve->line || drawn.curve->cloud) {
        out += MarkerShape(drawn.curve->style, x, y_.Pixel(bucket.mean));
      }
    }
    if (last && !spec_.markers) {
      out += MarkerShape(drawn.curve->style, x_.Pixel(buckets[*last].x),
                         y_.Pixel(buckets[*last].mean));
    }
    return out + "</g>";
  }

  const PlotSpec& spec_;
  Axis x_, y_;
  std::vector<DrawnCurve> curves_;
};

// Divides a curve into buckets of points. A cloud keeps every finite point.
std::vector<Bucket> Buckets(const Curve& curve, const PlotSpec& spec, const Axis& x) {
  Series points;
  for (const Point& point : curve.points) {
    if (Fits(point.x, spec.x_scale) && (!curve.cloud || std::isfinite(point.y)))
      points.push_back(point);
  }
  if (!curve.cloud) return Reduce(points, x.low(), x.high(), spec.x_scale, kNumBuckets);
  std::vector<Bucket> buckets;
  for (const Point& point : points)
    buckets.push_back(
        {.x = point.x, .mean = point.y, .low = point.y, .high = point.y, .num_points = 1});
  return buckets;
}

// Returns nullopt if there is no value to draw.
std::optional<Chart> ChartOf(const PlotSpec& spec) {
  Range x_range, y_range;
  for (const Curve& curve : spec.curves) {
    for (const Point& point : curve.points) {
      x_range.Add(point.x, spec.x_scale);
      if (Fits(point.x, spec.x_scale)) y_range.Add(point.y, spec.y_scale);
    }
  }
  if (y_range.empty()) return std::nullopt;
  for (const Rule& rule : spec.rules) y_range.Add(rule.y, spec.y_scale);
  if (std::ranges::any_of(spec.curves, &Curve::cloud))
    x_range = PaddedForCloud(x_range, spec.x_scale);
  if (!spec.categories.empty())
    x_range = {.low = -0.5, .high = static_cast<double>(spec.categories.size()) - 0.5};
  const Axis x(x_range.low, x_range.high, spec.x_scale, kLeft, kRight);
  std::vector<DrawnCurve> curves;
  for (const Curve& curve : spec.curves) curves.push_back({&curve, Buckets(curve, spec, x)});
  return std::optional<Chart>(std::in_place, spec, x, PaddedAxis(y_range, spec), std::move(curves));
}

std::string Caption(const PlotSpec& spec, const std::string& reduction) {
  std::string note = spec.note;
  if (!reduction.empty()) note += (note.empty() ? "" : "; ") + reduction;
  return Concat("<figcaption><b>", Escape(spec.title), "</b>",
                note.empty() ? "" : Concat("<span>", Escape(note), "</span>"), "</figcaption>");
}

}  // namespace

std::string MarkerShape(int style, double x, double y) {
  switch (style % kNumStyles) {
    case 0:
      return Concat("<circle cx=\"", Number(x), "\" cy=\"", Number(y), "\" r=\"3.5\"/>");
    case 1:
      return Concat("<rect x=\"", Number(x - 3.2), "\" y=\"", Number(y - 3.2),
                    "\" width=\"6.4\" height=\"6.4\"/>");
    case 2:
      return Concat("<path d=\"M", At(x, y - 4.4), "l4.4,7.8h-8.8Z\"/>");
    case 3:
      return Concat("<path d=\"M", At(x, y - 4.6), "l4.6,4.6l-4.6,4.6l-4.6,-4.6Z\"/>");
    case 4:
      return Concat("<path d=\"M", At(x, y + 4.4), "l4.4,-7.8h-8.8Z\"/>");
    case 5:
      return Concat("<path d=\"M", At(x - 4, y - 1.2),
                    "h2.8v-2.8h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8Z\"/>");
    case 6:
      return Concat("<circle class=\"hollow\" cx=\"", Number(x), "\" cy=\"", Number(y),
                    "\" r=\"3.2\"/>");
    default:
      return Concat("<rect class=\"hollow\" x=\"", Number(x - 2.9), "\" y=\"", Number(y - 2.9),
                    "\" width=\"5.8\" height=\"5.8\"/>");
  }
}

std::string RenderPlot(const PlotSpec& spec) {
  const std::optional<Chart> chart = ChartOf(spec);
  if (!chart) {
    return Concat("<figure>", Caption(spec, ""),
                  "<p class=\"none\">no finite value yet</p></figure>");
  }
  return Concat("<figure>", Caption(spec, chart->ReductionNote()), chart->Svg(""),
                "<script type=\"application/json\">", chart->HoverData(), "</script></figure>");
}

std::string RenderDrawing(const PlotSpec& spec, const std::string& attributes) {
  const std::optional<Chart> chart = ChartOf(spec);
  return chart ? chart->Svg(attributes + " ") : "";
}

}  // namespace halflife::report

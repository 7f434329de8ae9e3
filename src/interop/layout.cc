#include "interop/layout.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ckpt/safetensors.h"
#include "core/error.h"
#include "core/log.h"
#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

constexpr int64_t kBandElements = 1 << 20;

struct Matrix {
  RangeReader read;
  int64_t rows = 0, columns = 0;
};

// Reads elements [begin, end) of the flattened transpose, [columns, rows]. The matrix is read in
// bands of whole rows, because a checkpoint verifies a whole block for every read.
void ReadTransposed(const Matrix& matrix, int64_t begin, int64_t end, float* out) {
  if (begin == end) return;
  const int64_t rows = matrix.rows, columns = matrix.columns;
  const int64_t first = begin / rows, last = (end - 1) / rows;  // The columns to read.
  const int64_t rows_of_band = std::max<int64_t>(1, kBandElements / columns);
  std::vector<float> band;
  for (int64_t row = 0; row < rows; row += rows_of_band) {
    const int64_t num_rows = std::min(rows_of_band, rows - row);
    const int64_t from = row * columns + first, to = (row + num_rows - 1) * columns + last + 1;
    band.resize(static_cast<size_t>(to - from));
    matrix.read(from, to, band.data());
    for (int64_t column = first; column <= last; ++column) {
      const int64_t to_out = column * rows + row - begin;  // Output index of the band's first row.
      const int64_t stop = std::min(num_rows, end - begin - to_out);
      for (int64_t i = std::max<int64_t>(0, -to_out); i < stop; ++i)
        out[to_out + i] = band[static_cast<size_t>(i * columns + column - first)];
    }
  }
}

RangeReader Transposed(RangeReader read, int64_t rows, int64_t columns) {
  return [matrix = Matrix{std::move(read), rows, columns}](int64_t begin, int64_t end, float* out) {
    ReadTransposed(matrix, begin, end, out);
  };
}

// Concatenates the parts, which have `count` elements each.
RangeReader Stacked(std::vector<RangeReader> parts, int64_t count) {
  return [parts = std::move(parts), count](int64_t begin, int64_t end, float* out) {
    while (begin < end) {
      const int64_t part = begin / count, first = part * count;
      const int64_t stop = std::min(end, first + count);
      parts[static_cast<size_t>(part)](begin - first, stop - first, out);
      out += stop - begin;
      begin = stop;
    }
  };
}

// Reorders each group of `num_rows` rows of `width` elements: rows 0, 2, 4, ... and then rows 1, 3,
// 5, ... The rows of half a group are read together with their neighbours in one range, because a
// transposed tensor is read completely for every range.
RangeReader EvenThenOdd(RangeReader read, int64_t num_rows, int64_t width) {
  return [read = std::move(read), num_rows, width](int64_t begin, int64_t end, float* out) {
    const int64_t half = num_rows / 2 * width;
    std::vector<float> both;  // Alternating even and odd rows.
    while (begin < end) {
      const int64_t group = begin / (2 * half) * 2 * half, odd = (begin - group) / half;
      const int64_t base = group + odd * half, stop = std::min(end, base + half);
      const int64_t first = (begin - base) / width, last = (stop - base - 1) / width;
      const int64_t from = group + (2 * first + odd) * width;
      both.resize(static_cast<size_t>((2 * (last - first) + 1) * width));
      read(from, from + static_cast<int64_t>(both.size()), both.data());
      for (int64_t row = first; row <= last; ++row) {
        const int64_t here = base + row * width;  // Start of the row.
        const int64_t skip = std::max<int64_t>(0, begin - here);
        const int64_t count = std::min(stop - here, width) - skip;
        std::copy_n(both.begin() + 2 * (row - first) * width + skip, count, out);
        out += count;
      }
      begin = stop;
    }
  };
}

bool IsWhole(const Placement& placement) {
  return placement.num_rows == 0 && placement.pair_rows == 0;
}

// Elements of a parameter that are runs of `count` elements in a tensor: one run per group of
// `stride` elements, starting at `first`.
struct Runs {
  int64_t count = 0, first = 0, stride = 0;
};

Runs RunsOf(const Placement& placement, const std::vector<int64_t>& shape) {
  const int64_t num_elements = ckpt::CountElements(shape),
                width = num_elements / std::max<int64_t>(1, shape[0]);
  HL_CHECK(shape[0] % placement.num_groups == 0, shape[0], " rows cannot be divided into ",
           placement.num_groups, " groups");
  return {.count = num_elements / placement.num_groups,
          .first = placement.first_row * width,
          .stride = placement.num_rows * width};
}

RangeReader ReadRuns(RangeReader tensor, const Runs& runs) {
  return [tensor = std::move(tensor), runs](int64_t begin, int64_t end, float* out) {
    while (begin < end) {
      const int64_t group = begin / runs.count, within = begin % runs.count;
      const int64_t count = std::min(end - begin, runs.count - within);
      const int64_t from = group * runs.stride + runs.first + within;
      tensor(from, from + count, out);
      begin += count, out += count;
    }
  };
}

}  // namespace

std::vector<int64_t> TensorShape(const Placement& placement, std::vector<int64_t> shape) {
  shape.front() = placement.num_rows > 0 ? placement.num_rows * placement.num_groups
                                         : shape.front() * placement.num_parts;
  shape.insert(shape.begin(), static_cast<size_t>(placement.leading_ones), 1);
  shape.insert(shape.end(), static_cast<size_t>(placement.trailing_ones), 1);
  if (!placement.transposed) return shape;
  HL_CHECK(shape.size() == 2, "only matrices can be transposed, but the tensor has ", shape.size(),
           " dimensions");
  return {shape[1], shape[0]};
}

RangeReader ParameterReader(const Placement& placement, const std::vector<int64_t>& shape,
                            RangeReader tensor) {
  if (placement.transposed) {
    const std::vector<int64_t> theirs = TensorShape(placement, shape);
    tensor = Transposed(std::move(tensor), theirs[0], theirs[1]);
  }
  const int64_t count = ckpt::CountElements(shape), width = count / std::max<int64_t>(1, shape[0]);
  if (placement.num_rows > 0) {
    tensor = ReadRuns(std::move(tensor), RunsOf(placement, shape));
  } else if (const int64_t first = placement.part * count; first > 0) {
    tensor = [tensor = std::move(tensor), first](int64_t begin, int64_t end, float* out) {
      tensor(first + begin, first + end, out);
    };
  }
  if (placement.pair_rows == 0) return tensor;
  HL_CHECK(placement.pair_rows % 2 == 0 && shape[0] % placement.pair_rows == 0, shape[0],
           " rows cannot be split into groups of an even number of rows, ", placement.pair_rows);
  return EvenThenOdd(std::move(tensor), placement.pair_rows, width);
}

RangeReader TensorReader(const Placement& placement, const std::vector<int64_t>& shape,
                         std::vector<RangeReader> parts) {
  HL_CHECK(static_cast<int64_t>(parts.size()) == placement.num_parts && IsWhole(placement),
           parts.size(), " parts are given for ", placement.num_parts,
           ", or the placement has selected or paired rows");
  RangeReader stacked = parts.size() == 1 ? std::move(parts.front())
                                          : Stacked(std::move(parts), ckpt::CountElements(shape));
  if (!placement.transposed) return stacked;
  const std::vector<int64_t> theirs = TensorShape(placement, shape);
  return Transposed(std::move(stacked), theirs[1], theirs[0]);
}

RangeReader TensorOfRows(const std::string& name, std::vector<RowsOfTensor> parameters) {
  std::ranges::sort(parameters, {},
                    [](const RowsOfTensor& parameter) { return parameter.placement.first_row; });
  int64_t covered = 0;
  std::vector<Runs> runs;
  for (const auto& [placement, shape, read] : parameters) {
    runs.push_back(RunsOf(placement, shape));
    HL_CHECK(runs.back().first == covered && placement.pair_rows == 0 &&
                 runs.back().stride == runs.front().stride,
             "the parameters of ", name, " do not cover each of its rows once");
    covered += runs.back().count;
  }
  HL_CHECK(covered == runs.front().stride, "the parameters of ", name,
           " do not cover each of its rows once");
  return [parameters = std::move(parameters), runs](int64_t begin, int64_t end, float* out) {
    const int64_t stride = runs.front().stride;
    while (begin < end) {
      const int64_t group = begin / stride, within = begin % stride;
      const auto after = std::ranges::upper_bound(runs, within, {}, &Runs::first);
      const auto i = static_cast<size_t>(after - runs.begin() - 1);
      const int64_t in_run = within - runs[i].first;
      const int64_t count = std::min(end - begin, runs[i].count - in_run);
      const int64_t from = group * runs[i].count + in_run;
      parameters[i].read(from, from + count, out);
      begin += count, out += count;
    }
  };
}

namespace {

constexpr size_t kShownBytes = 60;  // Bytes of a value that a message shows.

std::string Shown(const nlohmann::json& value) {
  const std::string text =
      value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, kShownBytes);
  return text;
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& json, std::string where)
    : json_(json), where_(std::move(where)) {
  HL_CHECK_AS(ExitCode::kData, json_.is_object(), where_, ": not a JSON object");
}

const nlohmann::json* ConfigReader::Find(const std::string& key) {
  known_.insert(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::Has(const std::string& key) { return Find(key) != nullptr; }

bool ConfigReader::IsNull(const std::string& key) { return !Has(key) && json_.contains(key); }

const nlohmann::json* ConfigReader::Member(const std::string& key) { return Find(key); }

int64_t ConfigReader::Int(const std::string& key, int64_t absent, int64_t min) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  constexpr int64_t kMax = int64_t{1} << 30;  // The product of two such numbers fits into 64 bits.
  const double number = value->is_number() ? value->get<double>() : NAN;
  const bool valid = IsWholeNumber(number) && number >= static_cast<double>(min) && number <= kMax;
  Require(valid, key, " is ", Shown(*value), ". Only integers from ", min, " to ", kMax,
          " are supported.");
  return valid ? static_cast<int64_t>(number) : absent;
}

double ConfigReader::Double(const std::string& key, double absent) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  Require(value->is_number(), key, " is ", Shown(*value), ". Only numbers are supported.");
  return value->is_number() ? value->get<double>() : absent;
}

bool ConfigReader::Bool(const std::string& key, bool absent) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent && !IsNull(key);
  Require(value->is_boolean(), key, " is ", Shown(*value), ". Only true and false are supported.");
  return value->is_boolean() ? value->get<bool>() : absent;
}

std::string ConfigReader::String(const std::string& key, const std::string& absent) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  Require(value->is_string(), key, " is ", Shown(*value), ". Only strings are supported.");
  return value->is_string() ? value->get<std::string>() : absent;
}

void ConfigReader::Ignore(std::initializer_list<const char*> keys) {
  known_.insert(keys.begin(), keys.end());
}

void ConfigReader::IgnoreDefaults(const nlohmann::json& defaults) {
  for (const auto& [key, value] : defaults.items()) {
    const auto found = json_.find(key);
    if (found != json_.end() && (found->is_null() || *found == value)) known_.insert(key);
  }
}

void ConfigReader::Absorb(const ConfigReader& inner) {
  for (const std::string& problem : inner.problems_)
    problems_.push_back(inner.where_ + "." + problem);
  for (const std::string& key : inner.UnknownKeys())
    unknown_inside_.push_back(inner.where_ + "." + key);
}

std::vector<std::string> ConfigReader::UnknownKeys() const {
  std::vector<std::string> keys = unknown_inside_;
  for (const auto& [key, value] : json_.items())
    if (!known_.contains(key)) keys.push_back(key);
  return keys;
}

void ConfigReader::Check() const {
  std::string lines;
  for (const std::string& problem : problems_) lines += "\n  " + problem;
  HL_CHECK_AS(ExitCode::kData, problems_.empty(), where_,
              " contains settings that halflife does not support:", lines);
  if (const std::vector<std::string> unknown = UnknownKeys(); !unknown.empty())
    HL_WARN("interop", where_, ": ignoring unknown keys: ", Join(unknown, ", "));
}

std::string Layout::TensorName(const std::string& parameter, ConfigReader*) const {
  return parameter;
}
Placement Layout::PlacementOf(const std::string&, ConfigReader*) const { return {}; }
Layout::TensorPlace Layout::PlaceOf(const model::ModelConfig&, const std::string& parameter,
                                    ConfigReader* reader) const {
  return {.name = TensorName(parameter, reader), .placement = PlacementOf(parameter, reader)};
}
std::vector<std::string> Layout::OtherNames(const std::string&) const { return {}; }
std::vector<std::string> Layout::PiecesOf(const std::string&) const { return {}; }
std::string Layout::OptionalPrefix() const { return "model."; }
bool Layout::IsBuffer(const std::string&, ConfigReader&) const { return false; }
std::vector<float> Layout::BufferValues(const std::string&, ConfigReader&) const { return {}; }
bool Layout::IsUnused(const std::string&) const { return false; }
std::string Layout::CopyOf(const std::string&) const { return {}; }
std::vector<dist::ParamSpec> Layout::ZeroTensors(const model::ModelConfig&) const { return {}; }
std::string Layout::TokenizerWarning() const { return {}; }

const std::vector<const Layout*>& Layouts() {
  static const std::vector<std::unique_ptr<Layout>> owned = [] {
    std::vector<std::unique_ptr<Layout>> made;
#define HL_LAYOUT(Make, ...) \
  made.push_back(Make());    \
  made.back()->SetNames({__VA_ARGS__});
#include "interop/layouts/layouts.inc"
#undef HL_LAYOUT
    return made;
  }();
  static const std::vector<const Layout*> layouts = [] {
    std::vector<const Layout*> pointers;
    for (const auto& layout : owned) pointers.push_back(layout.get());
    return pointers;
  }();
  return layouts;
}

const Layout& LayoutOf(const std::string& model_type, const std::string& where) {
  for (const Layout* layout : Layouts()) {
    if (layout->model_type() == model_type) return *layout;
  }
  const auto name = [](const Layout* layout) { return layout->model_type(); };
  HL_FAIL(ExitCode::kData, where, ": model_type is '", model_type,
          "', which is not known. Use a model with one of ", Join(Layouts(), ", ", name), ".");
}

const Layout& ChooseLayout(const model::ModelConfig& given, const std::string& model_type) {
  const model::ModelConfig config = model::Resolved(given);
  const bool any = model_type.empty() || model_type == "auto";
  std::string obstacles;
  for (const Layout* layout : Layouts()) {
    if (any ? layout->mixer() != config.mixer.name() : layout->model_type() != model_type) continue;
    if (!layout->exports()) {
      obstacles += "\n  " + layout->model_type() + " can only be imported";
      continue;
    }
    if (layout->mixer() != config.mixer.name()) {
      obstacles += Concat("\n  ", model_type, " is for the mixer ", layout->mixer(),
                          ", but the model has ", config.mixer.name());
      continue;
    }
    const std::vector<std::string> lines = layout->Obstacles(config);
    if (lines.empty()) return *layout;
    for (const std::string& line : lines) obstacles += "\n  " + layout->model_type() + ": " + line;
  }
  const auto name = [](const Layout* layout) {
    return layout->model_type() + " (" + layout->mixer() + ")";
  };
  std::vector<const Layout*> exported;
  std::ranges::copy_if(Layouts(), std::back_inserter(exported), &Layout::exports);
  HL_FAIL(ExitCode::kUsage, "no Hugging Face class expresses this model:",
          obstacles.empty() ? Concat("\n  there is none for ",
                                     any ? "the mixer " + config.mixer.name() : model_type)
                            : obstacles,
          "\nUse a model that one of these classes (with their mixers) expresses: ",
          Join(exported, ", ", name));
}

}  // namespace halflife::interop

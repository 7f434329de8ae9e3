#include "cli/ckpt_report.h"

#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ckpt/agreement.h"
#include "ckpt/step_dir.h"
#include "core/error.h"
#include "core/human.h"

namespace halflife::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

double AgeSeconds(int64_t unix_ms) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::max(0.0,
                  std::chrono::duration<double>(now).count() - 1e-3 * static_cast<double>(unix_ms));
}

const char* StateName(ckpt::StepDir::Kind kind) {
  constexpr const char* kNames[] = {"ok", "bad", "superseded", "tmp"};
  return kNames[static_cast<int>(kind)];
}

std::string MeshText(const ckpt::MeshInfo& mesh) {
  return Concat(mesh.world, "/", mesh.dp, "/", mesh.sp, "/", mesh.zero_stage);
}

std::string Number(double value) { return Concat(value); }

// Formats a JSON value as a table cell; "-" if it is absent.
std::string Cell(const Json& object, const char* key) {
  if (!object.contains(key) || object[key].is_null()) return "-";
  return object[key].is_string() ? object[key].get<std::string>() : object[key].dump();
}

void AddManifest(const ckpt::Manifest& manifest, Json* row) {
  const ckpt::StepState& state = manifest.state;
  (*row)["age_s"] = AgeSeconds(manifest.unix_ms);
  (*row)["bytes"] = manifest.total_bytes;
  (*row)["world/dp/sp/stage"] = MeshText(state.mesh);
  (*row)["tokens"] = state.data.tokens;
  const auto loss = state.metrics.find("loss");
  (*row)["loss"] = loss == state.metrics.end() ? Json() : Json(loss->second);
  (*row)["final"] = state.final;
}

Json DescribeFolder(const ckpt::StepDir& step, const std::string& latest,
                    const std::optional<ckpt::BestStep>& best) {
  const std::string name = step.path.filename().string();
  Json row = {{"name", name}, {"step", step.step}, {"state", StateName(step.kind)}};
  row["latest"] = name == latest;
  row["best"] = best && best->path == step.path
                    ? Json({{"metric", best->metric}, {"value", best->value}})
                    : Json();
  std::error_code ignored;
  if (step.kind == ckpt::StepDir::Kind::kPublished && fs::exists(step.path / "KEEP", ignored)) {
    row["state"] = "pinned";
  }
  if (step.kind == ckpt::StepDir::Kind::kTemporary) return row;
  try {
    AddManifest(ckpt::StepReader::Open(step.path).manifest(), &row);
  } catch (const Error& error) {
    row["state"] = error.code() == ExitCode::kCheckpointIo ? "unverified" : "bad";
    row["problem"] = error.message();
  }
  return row;
}

// Returns fields of the resolved configs that differ from the parent step, if that still exists.
Json DifferenceToParent(const ckpt::StepReader& step) {
  const fs::path parent = step.path().parent_path() / step.state().parent_step;
  std::error_code ignored;
  if (step.state().parent_step.empty() || !fs::exists(parent / ckpt::kManifestName, ignored)) {
    return Json();
  }
  std::map<std::string, std::string> before;
  try {
    before = ckpt::StepReader::Open(parent).state().trajectory;
  } catch (const Error&) {
    return Json();  // A damaged parent gives no information about this step.
  }
  Json changed = Json::object();
  for (const auto& [key, value] : step.state().trajectory) {
    const auto old = before.find(key);
    if (old == before.end()) {
      changed[key] = {nullptr, ckpt::ReadableValue(value)};
    } else if (old->second != value) {
      changed[key] = {ckpt::ReadableValue(old->second), ckpt::ReadableValue(value)};
    }
  }
  return changed;
}

void AddStatistics(const ckpt::StepReader& step, const ckpt::TensorInfo& tensor, Json* row) {
  std::vector<float> values(static_cast<size_t>(tensor.count()));
  step.ReadTensor(ckpt::kMainArray, tensor.name, values.data());
  double low = INFINITY, high = -INFINITY, squares = 0;
  for (const float value : values) {
    low = std::min<double>(low, value);
    high = std::max<double>(high, value);
    squares += static_cast<double>(value) * value;
  }
  if (values.empty()) return;
  (*row)["min"] = low;
  (*row)["max"] = high;
  (*row)["rms"] = std::sqrt(squares / static_cast<double>(values.size()));
}

Json DescribeVersions(const ckpt::Versions& versions) {
  return {{"halflife", versions.halflife},
          {"git_hash", versions.git_hash},
          {"git_dirty", versions.git_dirty},
          {"torch", versions.torch},
          {"cuda", versions.cuda},
          {"nccl", versions.nccl},
          {"mpi", versions.mpi},
          {"hdf5", versions.hdf5},
          {"protobuf", versions.protobuf},
          {"compiler", versions.compiler}};
}

// Formats an object as indented "key value" lines.
std::string Lines(const Json& object) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [key, value] : object.items()) {
    if (value.is_structured() || value.is_null() || value == "") continue;
    rows.push_back({"  " + key, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  return Table(rows);
}

// Returns for example "LATEST, best val_loss 2.3456".
std::string Marks(const Json& row) {
  std::vector<std::string> marks;
  if (row["latest"]) marks.emplace_back("LATEST");
  const Json& best = row["best"];
  if (!best.is_null())
    marks.push_back(
        Concat("best ", best["metric"].get<std::string>(), " ", Fixed(best["value"], 4)));
  return Join(marks, ", ");
}

}  // namespace

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

Json DescribeRun(const fs::path& ckpt_dir) {
  const std::string latest = ckpt::ReadLatest(ckpt_dir);
  const std::optional<ckpt::BestStep> best = ckpt::FindBestStep(ckpt_dir);
  Json steps = Json::array();
  for (const ckpt::StepDir& step : ckpt::ListSteps(ckpt_dir)) {
    steps.push_back(DescribeFolder(step, latest, best));
  }
  return steps;
}

std::string RunTable(const Json& run) {
  std::vector<std::vector<std::string>> rows = {
      {"step", "state", "age", "size", "world/dp/sp/stage", "tokens", "loss", ""}};
  std::string problems;
  for (const Json& row : run) {
    const bool known = row.contains("bytes");
    rows.push_back({Cell(row, "step"), Cell(row, "state"), known ? HumanSeconds(row["age_s"]) : "-",
                    known ? HumanBytes(row["bytes"]) : "-", Cell(row, "world/dp/sp/stage"),
                    known ? HumanCount(row["tokens"]) : "-",
                    known && row["loss"].is_number() ? Fixed(row["loss"], 4) : "-", Marks(row)});
    if (row.contains("problem")) problems += row["problem"].get<std::string>() + "\n";
  }
  return Table(rows) + problems;
}

Json DescribeStep(const ckpt::StepReader& step, const std::string& pattern, bool with_stats) {
  const ckpt::StepState& state = step.state();
  Json json = {{"path", step.path().string()},
               {"step", state.step},
               {"manifest_hash", ToHex(step.manifest_hash())},
               {"attempt", step.manifest().attempt},
               {"run_id", state.run_id},
               {"parent_step", state.parent_step},
               {"final", state.final},
               {"num_updates", state.num_updates},
               {"last_lr", state.last_lr},
               {"model_family", state.model_family},
               {"bytes", step.total_bytes()},
               {"num_files", step.files().size()},
               {"world/dp/sp/stage", MeshText(state.mesh)},
               {"hosts", step.manifest().hosts},
               {"metrics", state.metrics},
               {"changed_from_parent", DifferenceToParent(step)},
               {"versions", DescribeVersions(state.versions)},
               {"cursor",
                {{"epoch", state.data.epoch},
                 {"next_sample", state.data.next_sample},
                 {"samples", state.data.samples},
                 {"tokens", state.data.tokens},
                 {"seq_len", state.data.seq_len},
                 {"seed", state.data.seed},
                 {"order_version", state.data.order_version},
                 {"dataset", ToHex(state.data.dataset)}}},
               {"tensors", Json::array()}};
  for (const ckpt::BlendCounter& source : state.data.blend) {
    json["cursor"]["drawn/" + source.corpus] = source.drawn;
    json["cursor"]["weight/" + source.corpus] = source.weight;
  }
  for (const ckpt::TensorInfo& tensor : step.tensors()) {
    if (::fnmatch(pattern.c_str(), tensor.name.c_str(), 0) != 0) continue;
    const ckpt::ArrayEntry& main = *step.manifest().FindArray(ckpt::kMainArray);
    Json row = {{"name", tensor.name},       {"shape", tensor.shape},
                {"dtype", Name(main.dtype)}, {"fragments", tensor.num_fragments},
                {"aliases", tensor.aliases}, {"arrays", tensor.arrays}};
    if (with_stats) AddStatistics(step, tensor, &row);
    json["tensors"].push_back(std::move(row));
  }
  return json;
}

std::string StepText(const Json& step) {
  std::string text = "step\n" + Lines(step);
  for (const char* part : {"metrics", "cursor", "versions"}) {
    if (!step[part].empty()) text += Concat(part, "\n", Lines(step[part]));
  }
  for (const auto& [key, values] : step["changed_from_parent"].items()) {
    text += Concat("changed from the parent: ", key, " ", values[0].dump(), " -> ",
                   values[1].dump(), "\n");
  }
  std::vector<std::vector<std::string>> rows = {
      {"tensor", "shape", "dtype", "fragments", "min", "max", "rms"}};
  for (const Json& tensor : step["tensors"]) {
    const auto number = [&](const char* key) {
      return tensor.contains(key) ? Number(tensor[key]) : std::string("-");
    };
    rows.push_back({tensor["name"], ckpt::ShapeText(tensor["shape"]), tensor["dtype"],
                    tensor["fragments"].dump(), number("min"), number("max"), number("rms")});
  }
  return text + Table(rows);
}

Json DescribeDifference(const ckpt::StepDifference& difference) {
  Json json = {{"equal", difference.equal()},           {"only_in_a", difference.only_in_a},
               {"only_in_b", difference.only_in_b},     {"reshaped", difference.reshaped},
               {"compared", difference.tensors.size()}, {"tensors", Json::array()}};
  for (const ckpt::TensorDifference& tensor : difference.tensors) {
    if (tensor.equal()) continue;
    Json ulps = Json::object();
    for (size_t i = 0; i < tensor.ulps.size(); ++i) ulps[ckpt::kUlpBins[i]] = tensor.ulps[i];
    json["tensors"].push_back({{"name", Concat(tensor.array, "/", tensor.name)},
                               {"count", tensor.count},
                               {"max_abs", tensor.max_abs},
                               {"relative_l2", tensor.relative_l2},
                               {"first_different", tensor.first_different},
                               {"a", tensor.value_a},
                               {"b", tensor.value_b},
                               {"ulps", std::move(ulps)}});
  }
  return json;
}

std::string DifferenceText(const Json& difference) {
  std::string text;
  const std::pair<const char*, const char*> lists[] = {
      {"only_in_a", "only in A: "}, {"only_in_b", "only in B: "}, {"reshaped", "reshaped: "}};
  for (const auto& [key, label] : lists) {
    for (const Json& name : difference[key]) text += label + name.get<std::string>() + "\n";
  }
  std::vector<std::vector<std::string>> rows = {{"tensor", "max abs", "rel L2", "first", "A", "B"}};
  rows[0].insert(rows[0].end(), ckpt::kUlpBins.begin(), ckpt::kUlpBins.end());
  for (const Json& tensor : difference["tensors"]) {
    rows.push_back({tensor["name"], Cell(tensor, "max_abs"), Cell(tensor, "relative_l2"),
                    Cell(tensor, "first_different"), Cell(tensor, "a"), Cell(tensor, "b")});
    for (const char* bin : ckpt::kUlpBins) rows.back().push_back(tensor["ulps"][bin].dump());
  }
  if (rows.size() > 1) text += Table(rows) + "(columns 0 to >=256: elements by distance in ulps)\n";
  return text + Concat(difference["equal"] ? "EQUAL in bits" : "DIFFERENT", ", ",
                       difference["compared"].get<size_t>(), " tensors compared\n");
}

Json DescribeRetention(const std::vector<ckpt::RetentionChoice>& choices) {
  Json json = Json::array();
  for (const ckpt::RetentionChoice& choice : choices) {
    json.push_back({{"name", choice.step.path.filename().string()},
                    {"keep", choice.keep},
                    {"reason", choice.reason}});
  }
  return json;
}

}  // namespace halflife::cli

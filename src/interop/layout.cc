#include "interop/layout.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <vector>

#include "core/error.h"
#include "interop/layouts/layouts.h"

namespace halflife::interop {

Placement Layout::PlacementOf(const std::string&, ConfigReader*) const { return {}; }
std::string Layout::OptionalPrefix() const { return {}; }
bool Layout::IsBuffer(const std::string&, ConfigReader&) const { return false; }
std::vector<float> Layout::BufferValues(const std::string&, ConfigReader&) const { return {}; }
bool Layout::IsUnused(const std::string&) const { return false; }
std::string Layout::CopyOf(const std::string&) const { return {}; }
std::vector<dist::ParamSpec> Layout::ZeroTensors(const model::ModelConfig&) const { return {}; }

const std::vector<const Layout*>& Layouts() {
  static const std::vector<std::unique_ptr<Layout>> owned = [] {
    std::vector<std::unique_ptr<Layout>> made;
#define HL_LAYOUT(Make, model_type, exports) made.push_back(Make());
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
          "'; known: ", Join(Layouts(), ", ", name));
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
          "\nknown: ", Join(exported, ", ", name));
}

}  // namespace halflife::interop

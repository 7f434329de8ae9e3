// The modules of Zoology's small models as their configuration describes them: an import path and
// constructor arguments. Each class has one entry in a table in zoology_modules.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "interop/layout.h"
#include "model/config/model_config.h"

namespace halflife::interop {

struct ZoologyModule {
  std::string class_name;  // The last part of the import path. Empty: no module is described.
  std::shared_ptr<const nlohmann::json> kwargs;  // An object if there is a class.
  bool in_hybrid = false;                        // If true, its tensors are one level deeper.
};

// Returns the mixer of a layer: the module itself, or the layer's entry in the list of a Hybrid,
// which is repeated.
ZoologyModule ZoologyMixerOf(const nlohmann::json& sequence_mixer, int64_t layer);
// Returns the number of layers after which the mixers repeat, at most `num_layers`.
int64_t ZoologyPeriod(const nlohmann::json& sequence_mixer, int64_t num_layers);

// Reads the mixer of a module. Settings that halflife does not support become problems in `reader`,
// or throw kData.
model::MixerConfig ReadZoologyMixer(const ZoologyModule& module, int64_t layer,
                                    ConfigReader& reader);
// Reads Mamba with the kwargs of a module, regardless of its name.
model::MixerConfig ReadZoologyMamba(const nlohmann::json& sequence_mixer, ConfigReader& reader);
model::ChannelMixerConfig ReadZoologyStateMixer(const nlohmann::json& state_mixer,
                                                int64_t model_dim, ConfigReader& reader);

// Returns the name of a parameter within the mixer's class, without the names of the layer and the
// module.
std::string ZoologyMixerName(const ZoologyModule& mixer, const std::string& parameter);
Placement ZoologyPlacement(const ZoologyModule& mixer, const std::string& parameter);

}  // namespace halflife::interop

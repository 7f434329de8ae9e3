// The output of `halflife mixers`: each result as JSON, and as text made from the JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace halflife::cli {

// Returns a list of {kind, usual, variants: [{name, summary}]}, mixers first.
nlohmann::ordered_json DescribeParts();
std::string PartsText(const nlohmann::ordered_json& parts);

// `name`: "gla", or "channel_mixer.glu". Keys:
// - kind, name, summary, equation (of mixers);
// - cost (of mixers and channel mixers): of one layer of a model of cost.model_dim, with the
//   defaults: parameters, matmul_flops and, of mixers, mixing_flops of a token forward at
//   cost.seq_len;
// - state (of mixers): a list of {name, shape, dtype, grows, bytes} of one row; where it grows, the
//   shape has "tokens" and the bytes are a token's; dtype "compute" is counted as fp32;
// - options: a list of {name, type, default, meaning, choices}.
// Throws Error kUsage for an unknown name, with similar names.
nlohmann::ordered_json DescribePart(const std::string& name);
std::string PartText(const nlohmann::ordered_json& part);

}  // namespace halflife::cli

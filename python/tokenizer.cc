// halflife.Tokenizer.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "core/error.h"
#include "data/tokenizer_folder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace halflife::python {

void DeclareTokenizer(nb::module_& module) {
  using data::Tokenizer;
  nb::class_<Tokenizer>(module, "Tokenizer", "Converts text to token ids and back.")
      .def(
          "encode",
          [](const Tokenizer& self, const std::string& text, bool parse_special, bool from_start) {
            const auto special =
                parse_special ? data::SpecialTokens::kParse : data::SpecialTokens::kPlain;
            return ToNumpy(from_start ? self.EncodeText(text, special)
                                      : self.Encode(text, special));
          },
          "text"_a, nb::kw_only(), "parse_special"_a = false, "from_start"_a = false,
          "Returns the ids of a text, [N] int32, without eos. With `parse_special`, names of "
          "special tokens in the text, such as '</s>', become these tokens. With `from_start`, bos "
          "comes first if `begins_with_bos`.")
      .def(
          "decode",
          [](const Tokenizer& self, const std::vector<int32_t>& ids) {
            for (const int32_t id : ids)
              HL_CHECK_AS(ExitCode::kUsage, id >= 0 && id < self.vocab_size(), "id ", id,
                          " is outside of the tokenizer's vocabulary of ", self.vocab_size(),
                          ". Use ids of 0 to ", self.vocab_size() - 1, ".");
            const std::string text = self.Decode(ids);
            return nb::bytes(text.data(), text.size());
          },
          "ids"_a, "Returns the bytes that the ids represent. Special ids represent none.")
      .def_prop_ro("kind", &Tokenizer::kind, "'bytes', 'sentencepiece' or 'bpe'.")
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size, "The number of ids.")
      .def_prop_ro("eos_id", &Tokenizer::eos_id, "The id that ends a document.")
      .def_prop_ro("begins_with_bos", &Tokenizer::begins_with_bos,
                   "Whether `score` and `generate` put bos in front of a text.");
  module.def(
      "load_tokenizer",
      [](const std::filesystem::path& name) {
        return SharedTokenizer(data::OpenTokenizer(name.string()));
      },
      "name"_a,
      "Opens 'bytes', a sentencepiece model, a tokenizer.json, or the tokenizer of a folder: a "
      "dataset, a run or a Hugging Face model.");
}

}  // namespace halflife::python

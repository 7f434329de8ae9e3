#include <dlfcn.h>

#include "core/error.h"
#include "data/sentencepiece_bridge.h"

namespace halflife::data {

const SentencePieceBridge& LoadSentencePieceBridge() {
#ifdef __SANITIZE_ADDRESS__
  HL_FAIL(ExitCode::kEnvironment,
          "a build with AddressSanitizer cannot load sentencepiece (its dlopen refuses "
          "RTLD_DEEPBIND); use a build without it, or --tokenizer bytes");
#else
  // The module is never closed, because sentencepiece keeps registries that must outlive every
  // model. A second dlopen returns the same module.
  void* module = ::dlopen(kSentencePieceModule, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  HL_CHECK_AS(ExitCode::kEnvironment, module != nullptr,
              "cannot load the sentencepiece module: ", ::dlerror(),
              ". Install the package libsentencepiece0, and keep ", kSentencePieceModule,
              " where it was built or installed (PREFIX/lib/halflife).");
  using Entry = const SentencePieceBridge* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(module, kSentencePieceEntry));
  HL_CHECK_AS(ExitCode::kEnvironment, entry != nullptr, kSentencePieceModule, " has no ",
              kSentencePieceEntry, "; it belongs to another build of halflife. Build it again.");
  return *entry();
#endif
}

}  // namespace halflife::data

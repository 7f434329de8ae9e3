#include "support/paths.h"

namespace halflife::test {

const char* const kSourceDir = HALFLIFE_SOURCE_DIR;
const char* const kProgram = HALFLIFE_BINARY;
const char* const kEngineServer = HALFLIFE_ENGINE_SERVER;

}  // namespace halflife::test

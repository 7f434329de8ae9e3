// The mixer of docs/adding_a_mixer.md, a source file of its own.
#include "examples/docs/adding_a_mixer.md"

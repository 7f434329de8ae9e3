// The second mixer of docs/adding_a_mixer.md, which calls a kernel.
#include "examples/docs/adding_a_mixer.md.2"

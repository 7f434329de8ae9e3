// Converts token files of other trainers to a dataset.
//
// | trainer | files | documents |
// |---|---|---|
// | nanoGPT | X.bin: ids of 16 bits (32 for vocabularies above 65,536) | end with eos |
// | llm.c | X.bin: the same behind a header of 1024 bytes | begin with eos |
// | Megatron-LM | X.bin and X.idx with lengths of sequences and documents | as in X.idx |
//
// All are little endian. In all of them, eos ends a document, and eos of empty documents is left
// out. If a file without an index begins with bos and has no eos, each bos begins a document. The
// tokenizer must be the one that made the ids, because the files do not contain it.
#pragma once

#include <string>
#include <vector>

#include "data/prepare/prepare.h"

namespace halflife::data {

// True if all names end in .bin: they are token files.
bool AreTokenFiles(const std::vector<std::string>& names);

// `config.input` names token files, also by patterns. Options for text are not allowed. Documents
// are split by their content as in Prepare, or input.validation_paths are the validation split.
// With config.in_place, the shards are links to the files. Every eos then ends a document, also an
// empty one, and bos ends none.
PrepareSummary PrepareTokenFiles(const PrepareConfig& config);

}  // namespace halflife::data

// Checks that a manifest is complete: fragments cover every tensor, and every file's data, exactly
// once.
#include <algorithm>
#include <map>
#include <set>

#include "ckpt/damage.h"
#include "ckpt/manifest.h"
#include "ckpt/stored_layout.h"

namespace halflife::ckpt {
namespace {

using Pieces = std::vector<const StoredFragment*>;

std::string Label(const std::string& array, const std::string& tensor) {
  return Concat(array, "/", tensor);
}

void CheckNames(const Manifest& manifest, const std::string& where) {
  std::set<std::string> files, arrays, tensors;
  uint64_t total = 0;
  for (const FileEntry& file : manifest.files) {
    CheckDamage(!file.name.empty() && file.name.find('/') == std::string::npos &&
                    file.name.find('\0') == std::string::npos && file.name[0] != '.',
                where, ": '", file.name, "' is not a plain file name");
    CheckDamage(files.insert(file.name).second, where, ": file ", file.name, " is listed twice");
    CheckDamage(file.data_offset <= file.bytes, where, ": file ", file.name,
                " is shorter than its header");
    CheckDamage(!__builtin_add_overflow(total, file.bytes, &total), where, ": sizes overflow");
  }
  CheckDamage(total == manifest.total_bytes, where, ": files of ", total, " bytes, total says ",
              manifest.total_bytes);
  for (const ArrayEntry& array : manifest.arrays) {
    CheckDamage(!array.name.empty() && arrays.insert(array.name).second, where, ": array '",
                array.name, "' is listed twice");
  }
  for (const TensorEntry& tensor : manifest.tensors) {
    CheckDamage(!tensor.name.empty() && tensors.insert(tensor.name).second, where, ": tensor '",
                tensor.name, "' is listed twice");
    CheckDamage(tensor.count() >= 0, where, ": tensor '", tensor.name, "': its shape overflows");
    for (const std::string& alias : tensor.aliases) {
      CheckDamage(tensors.insert(alias).second, where, ": alias '", alias, "' is listed twice");
    }
  }
}

void CheckTensor(const TensorEntry& tensor, const std::string& array, Pieces pieces,
                 const std::string& where) {
  std::sort(pieces.begin(), pieces.end(), [](const StoredFragment* a, const StoredFragment* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  int64_t covered = 0;
  for (const StoredFragment* piece : pieces) {
    CheckDamage(piece->begin >= covered, where, ": ", Label(array, tensor.name), " elements [",
                piece->begin, ", ", std::min(covered, piece->end), ") are stored twice");
    CheckDamage(piece->begin == covered, where, ": ", Label(array, tensor.name), " elements [",
                covered, ", ", piece->begin, ") are not stored");
    CheckDamage(piece->end > piece->begin || (tensor.count() == 0 && pieces.size() == 1), where,
                ": ", Label(array, tensor.name), " has an empty or reversed fragment at ",
                piece->begin);
    covered = piece->end;
  }
  CheckDamage(covered == tensor.count(), where, ": ", Label(array, tensor.name),
              " is stored up to ", covered, " of ", tensor.count(), " elements");
}

// Checks that every tensor has main weights, and that an array has as many parts as its entry says.
void CheckArrays(const Manifest& manifest, const std::string& where) {
  std::map<std::string, uint64_t> elements;  // by array
  for (const TensorEntry& tensor : manifest.tensors) {
    std::map<std::string, Pieces> by_array;
    for (const StoredFragment& fragment : tensor.fragments)
      by_array[fragment.array].push_back(&fragment);
    CheckDamage(!by_array.empty(), where, ": tensor '", tensor.name, "' is not stored");
    CheckDamage(by_array.contains(kMainArray), where, ": tensor '", tensor.name,
                "' has no main weights");
    CheckDamage(by_array.size() == manifest.arrays.size(), where, ": tensor '", tensor.name,
                "' has parts of ", by_array.size(), " of ", manifest.arrays.size(), " arrays");
    for (const auto& [array, pieces] : by_array) {
      CheckTensor(tensor, array, pieces, where);
      elements[array] += static_cast<uint64_t>(tensor.count());
    }
  }
  for (const ArrayEntry& array : manifest.arrays) {
    CheckDamage(elements[array.name] == static_cast<uint64_t>(array.elements), where, ": array '",
                array.name, "' has ", array.elements, " elements, and its tensors have ",
                elements[array.name]);
  }
}

// Checks that the fragments of each file, in the order of their bytes, are adjacent and end where
// the file ends.
void CheckFiles(const Manifest& manifest, const std::string& where) {
  struct Range {
    uint64_t begin, end;
    const TensorEntry* tensor;
  };
  std::vector<std::vector<Range>> ranges(manifest.files.size());
  for (const TensorEntry& tensor : manifest.tensors) {
    for (const StoredFragment& fragment : tensor.fragments) {
      CheckDamage(static_cast<size_t>(fragment.file) < ranges.size(), where, ": tensor '",
                  tensor.name, "' lies in file ", fragment.file, " of ", ranges.size());
      const uint64_t bytes = FragmentBytes(fragment);
      CheckDamage(manifest.num_slices > 0 ||
                      fragment.block_hashes.size() == NumBlocks(bytes, manifest.block_bytes),
                  where, ": ", Label(fragment.array, tensor.name), " has ",
                  fragment.block_hashes.size(), " block hashes for ", bytes, " bytes");
      CheckDamage(fragment.offset <= UINT64_MAX - bytes, where, ": offset ", fragment.offset);
      ranges[fragment.file].push_back({fragment.offset, fragment.offset + bytes, &tensor});
    }
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    const FileEntry& file = manifest.files[i];
    std::sort(ranges[i].begin(), ranges[i].end(), [](const Range& a, const Range& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    uint64_t at = 0;
    for (const Range& range : ranges[i]) {
      CheckDamage(range.begin == at, where, ": tensor '", range.tensor->name, "' begins at byte ",
                  range.begin, " of ", file.name, " where the data before it ends at ", at);
      at = range.end;
    }
    const uint64_t data = file.bytes - file.data_offset, table = kHashBytes * file.num_blocks;
    CheckDamage(at + table == data, where, ": fragments fill ", at, " of ", data - table,
                " data bytes of ", file.name);
  }
}

}  // namespace

uint64_t FragmentBytes(const StoredFragment& fragment) {
  return static_cast<uint64_t>(fragment.end - fragment.begin) * SizeOf(fragment.dtype);
}

uint64_t NumBlocks(uint64_t fragment_bytes, uint64_t block_bytes) {
  return (fragment_bytes + block_bytes - 1) / block_bytes;
}

void CheckCoverage(const Manifest& manifest, const std::string& where) {
  CheckNames(manifest, where);
  CheckArrays(manifest, where);
  CheckFiles(manifest, where);
  if (manifest.num_slices > 0) CheckDerivedHeaders(manifest, where);
}

}  // namespace halflife::ckpt

// halflife.Dataset: tokens of a prepared dataset, and the batches of a training run.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <mutex>

#include "bindings.h"
#include "core/error.h"
#include "data/dataset.h"
#include "data/token_source.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace halflife::python {
namespace {

nb::dict SplitFacts(const data::SplitInfo& split) {
  nb::dict facts;
  facts["num_tokens"] = split.num_tokens;
  facts["num_documents"] = split.num_documents;
  facts["num_bytes"] = split.num_bytes;
  return facts;
}

std::vector<int32_t> Read(const data::Dataset& dataset, const std::string& split_name,
                          int64_t begin, int64_t end) {
  const data::Split split = data::SplitOf(split_name);
  const int64_t tokens = dataset.split(split).num_tokens;
  HL_CHECK_AS(ExitCode::kUsage, 0 <= begin && begin <= end && end <= tokens, "tokens [", begin,
              ", ", end, ") are not in the ", split_name, " split of ", tokens,
              " tokens. Use 0 <= begin <= end <= ", tokens, ".");
  std::vector<int32_t> ids(static_cast<size_t>(end - begin));
  const nb::gil_scoped_release release;
  dataset.Read(split, begin, ids);
  return ids;
}

// The endless stream of one rank, as a Python iterator.
class Batches {
 public:
  Batches(const data::Dataset& dataset, const std::string& split, int64_t seq_len,
          int64_t batch_size, uint64_t seed, uint64_t first_step, bool reset_at_documents)
      : source_(dataset, data::SplitOf(split),
                {.seq_len = seq_len,
                 .micro_batch = batch_size,
                 .global_batch = batch_size,
                 .seed = seed,
                 .reset_at_documents = reset_at_documents}) {
    source_.Seek(source_.order().FirstSample(first_step));
  }

  data::Batch Next() {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);  // several threads of Python may share the iterator
    return source_.Next();
  }

 private:
  std::mutex mutex_;
  data::TokenSource source_;
};

void DeclareBatch(nb::module_& module) {
  using data::Batch;
  const auto shape = [](const Batch& batch) {
    return std::vector<size_t>{static_cast<size_t>(batch.batch_size),
                               static_cast<size_t>(batch.seq_len)};
  };
  nb::class_<Batch>(module, "Batch", "B rows of T tokens.")
      .def_prop_ro(
          "inputs", [=](const Batch& self) { return ToNumpy(self.inputs, shape(self)); },
          nb::rv_policy::move, nb::sig("def inputs(self) -> numpy.ndarray"),
          "Token ids, [B, T] int32.")
      .def_prop_ro(
          "targets", [=](const Batch& self) { return ToNumpy(self.targets, shape(self)); },
          nb::rv_policy::move, nb::sig("def targets(self) -> numpy.ndarray"),
          "The next tokens or labels, [B, T] int32; -100 marks a token without a target.")
      .def_prop_ro(
          "cu_seqlens", [](const Batch& self) { return ToNumpy(self.cu_seqlens); },
          nb::rv_policy::move, nb::sig("def cu_seqlens(self) -> numpy.ndarray"),
          "The starts of documents and rows among the B*T tokens, and B*T: [N + 1] int32.")
      .def_prop_ro(
          "samples", [](const Batch& self) { return ToNumpy(self.samples); }, nb::rv_policy::move,
          nb::sig("def samples(self) -> numpy.ndarray"), "The number of each sample, [B] uint64.");
}

}  // namespace

void DeclareDataset(nb::module_& module) {
  using data::Dataset;
  DeclareBatch(module);
  nb::class_<Batches>(module, "Batches", "An endless iterator of batches.")
      .def("__iter__", [](nb::handle self) { return self; })
      .def("__next__", &Batches::Next);
  nb::class_<Dataset>(module, "Dataset", "A dataset that `halflife prepare` wrote.")
      .def(
          "__init__",
          [](Dataset* self, const std::filesystem::path& path) {
            new (self) Dataset(Dataset::Open(path));
          },
          "path"_a)
      .def_prop_ro("path", [](const Dataset& self) { return self.folder().string(); })
      .def_prop_ro("vocab_size", [](const Dataset& self) { return self.info().vocab_size; })
      .def_prop_ro(
          "splits",
          [](const Dataset& self) {
            nb::dict splits;
            for (const data::Split split : data::kSplits)
              if (self.split(split).num_tokens > 0)
                splits[data::Name(split)] = SplitFacts(self.split(split));
            return splits;
          },
          nb::sig("def splits(self) -> dict[str, dict[str, int]]"),
          "num_tokens, num_documents and num_bytes of each split that is not empty.")
      .def(
          "load_tokenizer",
          [](const Dataset& self) { return SharedTokenizer(self.LoadTokenizer()); },
          "Opens the tokenizer with which the dataset was prepared.")
      .def(
          "read",
          [](const Dataset& self, const std::string& split, int64_t begin, int64_t end) {
            return ToNumpy(Read(self, split, begin, end));
          },
          "split"_a, "begin"_a, "end"_a,
          nb::sig("def read(self, split: str, begin: int, end: int) -> numpy.ndarray"),
          "Returns the tokens [begin, end) of a split, int32. A document ends with eos.")
      .def(
          "batches",
          [](const Dataset& self, const std::string& split, int64_t seq_len, int64_t batch_size,
             uint64_t seed, uint64_t first_step, bool reset_at_documents) {
            HL_CHECK_AS(ExitCode::kUsage, seq_len > 0 && batch_size > 0, "seq_len is ", seq_len,
                        " and batch_size is ", batch_size, ". Use numbers of at least 1.");
            return std::make_unique<Batches>(self, split, seq_len, batch_size, seed, first_step,
                                             reset_at_documents);
          },
          "split"_a = "train", nb::kw_only(), "seq_len"_a, "batch_size"_a, "seed"_a = 0,
          "first_step"_a = 0, "reset_at_documents"_a = true, nb::keep_alive<0, 1>(),
          "Returns an endless iterator of shuffled batches. A training run with the same seed, "
          "sequence length and global batch, and with data.epoch_end fill, reads the same rows in "
          "the same order.");
}

}  // namespace halflife::python

// How a benchmark ends: whatever it meets, its words are on stderr and its exit code says what it
// was.
//
//   int main(int argc, char** argv) {
//     ...
//     return halflife::bench::ExitCodeOf([&] { std::cout << Run(options).dump(2) << "\n"; });
//   }
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace halflife::bench {

// Of an exception, without the stack frames that LibTorch's carry.
std::string WordsOf(const std::exception& error);

// 0 after `run`; else the code of the Error that it threw, or of an internal fault.
int ExitCodeOf(const std::function<void()>& run);

// What went wrong in parts of a program that goes on with the others, which count.
//
//   Problems problems;
//   const std::string problem = problems.Of([&] { row = Measure(); });   // empty: none
//   std::cout << rows << "\n";
//   problems.ThrowIfAny();
class Problems {
 public:
  // The words of what `run` throws; empty where it throws nothing.
  std::string Of(const std::function<void()>& run);
  // Error: exit 1, with the first one's words.
  void ThrowIfAny() const;

 private:
  int parts_ = 0, failed_ = 0;
  std::string first_;
};

}  // namespace halflife::bench

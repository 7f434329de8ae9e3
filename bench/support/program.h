// Runs a benchmark: messages of exceptions are printed to stderr, and the exit code depends on
// their kind.
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

// Returns the message of an exception, without the stack frames of LibTorch's exceptions.
std::string WordsOf(const std::exception& error);

// Returns 0 after `run`, or the code of the Error that it threw, or that of an internal error.
int ExitCodeOf(const std::function<void()>& run);

// Collects and counts the failures of parts of a program, which continues with the other parts.
//
//   Problems problems;
//   const std::string problem = problems.Of([&] { row = Measure(); });   // empty: none
//   std::cout << rows << "\n";
//   problems.ThrowIfAny();
class Problems {
 public:
  // Returns the message of the exception that `run` throws. Empty: it does not throw.
  std::string Of(const std::function<void()>& run);
  // Throws Error with exit code 1 and the first message.
  void ThrowIfAny() const;

 private:
  int parts_ = 0, failed_ = 0;
  std::string first_;
};

}  // namespace halflife::bench

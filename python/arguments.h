// The words of a command line, as Python gives them to a command.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

namespace blockscope::python {

/// Bytes as argv. The first word is the program.
class Arguments {
 public:
  explicit Arguments(const std::vector<nanobind::bytes>& given) {
    for (const nanobind::bytes& word : given) words_.emplace_back(word.c_str(), word.size());
    for (std::string& word : words_) pointers_.push_back(word.data());
    pointers_.push_back(nullptr);
  }
  int count() const { return static_cast<int>(words_.size()); }
  char** values() { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

}  // namespace blockscope::python

// The words of the task generator. Every word is one token of models/needle/tokenizer.json, because
// make_tokenizer.py reads the same lists from task_words.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

/// Index into `TaskWords::text`: one word, punctuation mark or digit; exactly one token.
using TaskWord = std::uint16_t;

struct TaskWords {
  std::vector<std::string> text;  // the word in the text, with its leading space if it has one
  std::vector<TaskWord> names;    // " Anna": keys of needles
  std::vector<TaskWord> values;   // " amber": values of needles, variables of chains
  std::vector<TaskWord> letters;  // " b" ... " z": what `sort` sorts
  std::vector<TaskWord> digits;   // "0" ... "9", no leading space
  std::vector<TaskWord> adjectives, nouns, verbs, prepositions, adverbs;  // filler sentences

  /// The index of a word, which must be in the list.
  TaskWord index(const std::string& word) const;
};

const TaskWords& task_words();

}  // namespace blockscope

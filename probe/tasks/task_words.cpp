#include "probe/tasks/task_words.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace blockscope {
namespace {

// Words with a leading space in the text.
constexpr const char* kNames = R"(
Anna Boris Clara Dora Emil Felix Greta Hugo Ida Jonas Karin Leo Mara Nils Olga Paul Rita Simon
Tessa Vera Walter Yara Zoe Amir Bela Cora Dario Elsa Fritz Gina Hanna Ivan Jana Kurt Lena Max
Nora Oskar Petra Rosa Sven Tina Udo Viola Wanda Xenia Yuri Zita Alma Bruno Carla Dina Erik Fiona
Georg Helga Igor Julia Klaus Linda Marco Nadia Otto Pia
)";
constexpr const char* kValues = R"(
amber river stone cloud maple tiger violin copper lemon anchor basket candle dragon eagle
feather guitar hammer island jacket kettle ladder magnet needle onion parrot quartz rocket
saddle temple urchin velvet walnut yogurt zebra apple beach castle diamond engine forest garden
helmet iron jungle knight lantern marble nickel ocean pepper queen rabbit silver tunnel umbrella
valley window yellow almond bamboo cactus desert ember falcon ginger harbor indigo jasmine koala
lotus mango nectar orchid panda quiver raven salmon turtle violet willow agate birch cedar daisy
elm fern grape hazel ivory jade kelp lilac mint nutmeg olive pearl quail ruby sage tulip vine
wheat yarn zinc acorn bell coral drum earth flute globe honey ink jewel kite lamp moss nest oak
plum ring seal tent wolf
)";
constexpr const char* kLetters = "b c d e f g h i j k l m n o p q r s t u v w x y z";
constexpr const char* kAdjectives = R"(
old young quiet busy small large warm cold bright dark narrow wide gentle proud tired happy
early late simple famous
)";
constexpr const char* kNouns = R"(
baker teacher farmer doctor sailor painter driver writer singer child woman man neighbor student
market street house school bridge station church kitchen office hill road field town village
park shop
)";
constexpr const char* kVerbs = R"(
walked waited talked sat stood worked rested looked slept stayed danced played laughed moved
turned returned
)";
constexpr const char* kPrepositions = "near behind inside beside across above from to";
constexpr const char* kAdverbs = R"(
slowly often again today there alone always never soon twice
)";
constexpr const char* kFunctionWords = "the of is password keeps has = and";
constexpr const char* kCapitalised = "The A Note";
// Without a leading space: the first word of a line, digits, punctuation.
constexpr const char* kLineStarts = "Text Q A Chain Sum Copy Sort";
constexpr const char* kMarks = "0 1 2 3 4 5 6 7 8 9 . , : ; + - =";

std::vector<TaskWord> add(TaskWords& words, const char* list, const std::string& prefix) {
  std::vector<TaskWord> indices;
  std::istringstream stream(list);
  for (std::string word; stream >> word;) {
    indices.push_back(static_cast<TaskWord>(words.text.size()));
    words.text.push_back(prefix + word);
  }
  return indices;
}

TaskWords make_words() {
  TaskWords words;
  words.names = add(words, kNames, " ");
  words.values = add(words, kValues, " ");
  words.letters = add(words, kLetters, " ");
  words.adjectives = add(words, kAdjectives, " ");
  words.nouns = add(words, kNouns, " ");
  words.verbs = add(words, kVerbs, " ");
  words.prepositions = add(words, kPrepositions, " ");
  words.adverbs = add(words, kAdverbs, " ");
  add(words, kFunctionWords, " ");
  add(words, kCapitalised, " ");
  add(words, kLineStarts, "");
  const std::vector<TaskWord> marks = add(words, kMarks, "");
  words.digits.assign(marks.begin(), marks.begin() + 10);
  words.text.emplace_back("\n");
  return words;
}

}  // namespace

TaskWord TaskWords::index(const std::string& word) const {
  const auto found = std::find(text.begin(), text.end(), word);
  if (found == text.end()) throw std::logic_error("task_words: no word '" + word + "'");
  return static_cast<TaskWord>(found - text.begin());
}

const TaskWords& task_words() {
  static const TaskWords words = make_words();
  return words;
}

}  // namespace blockscope

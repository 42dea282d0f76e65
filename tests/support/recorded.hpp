#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

// Cases recorded by a program of tests/data: one per line, fields separated by ';'.

namespace tutti::test {

inline std::vector<double> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<double> all;
  for (std::string word; in >> word;) all.push_back(std::stod(word));  // Also "nan".
  return all;
}

/// The words of a field; those of the form key=value are options.
struct Recorded {
  std::string words;
  std::map<std::string, std::string> options;
  std::vector<std::vector<double>> numbers;  ///< The other fields.

  double number(const std::string& name) const { return std::stod(options.at(name)); }
  std::int64_t integer(const std::string& name) const { return std::stoll(options.at(name)); }
};

inline std::vector<Recorded> read_recorded(const std::string& path) {
  std::ifstream file(path);
  std::vector<Recorded> cases;
  for (std::string line; std::getline(file, line);) {
    Recorded c;
    std::istringstream in(line);
    std::getline(in, c.words, ';');
    std::istringstream words(c.words);
    for (std::string word; words >> word;)
      if (const auto equal = word.find('='); equal != std::string::npos)
        c.options[word.substr(0, equal)] = word.substr(equal + 1);
    for (std::string field; std::getline(in, field, ';');) c.numbers.push_back(numbers(field));
    cases.push_back(c);
  }
  return cases;
}

}  // namespace tutti::test

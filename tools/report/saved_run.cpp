#include "report/saved_run.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

using Json = nlohmann::ordered_json;

/// Lists and objects may be too deep for dump(), which is recursive.
std::string text_of(const Json& json) {
  if (json.is_structured() && !json.empty())
    return fmt::format("an {} of {}", json.type_name(), json.size());
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// A value of the file, with its path for errors: "results[3].time_us.p50".
class JsonValue {
 public:
  JsonValue(const Json& json, const std::string& file, std::string path = {})
      : json_(&json), file_(&file), path_(std::move(path)) {}

  template <typename... Args>
  [[noreturn]] void expected(fmt::format_string<Args...> what, Args&&... args) const {
    constexpr std::size_t longest = 40;
    std::string found = text_of(*json_);
    if (found.size() > longest) found = found.substr(0, longest) + "...";
    refuse("{}: {}: expected {}, found {}; use a file of tutti bench --out FILE.json", *file_,
           path_.empty() ? "the whole" : path_, fmt::format(what, std::forward<Args>(args)...),
           found);
  }

  /// A field that must be there.
  JsonValue operator[](const char* name) const {
    const auto field = object().find(name);
    if (field == json_->end()) expected("an object with the field '{}'", name);
    return {*field, *file_, path_.empty() ? name : fmt::format("{}.{}", path_, name)};
  }
  /// A field that may be null or absent.
  template <typename T>
  void read(const char* name, T& value) const {
    const auto field = object().find(name);
    if (field != json_->end() && !field->is_null()) (*this)[name].to(value);
  }

  void to(std::string& text) const {
    if (!json_->is_string()) expected("a string");
    text = json_->get<std::string>();
  }
  void to(bool& value) const {
    if (!json_->is_boolean()) expected("true or false");
    value = json_->get<bool>();
  }
  void to(double& number) const {
    if (!json_->is_number()) expected("a number");
    number = json_->get<double>();
  }
  template <typename T>
  requires std::is_integral_v<T>
  void to(T& number) const {
    constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
    if (!json_->is_number_unsigned() || json_->get<std::uint64_t>() > most)
      expected("a whole number from 0 to {}", most);
    number = json_->get<T>();
  }
  template <typename T>
  void to(std::optional<T>& value) const {
    to(value.emplace());
  }
  template <typename T>
  void to(std::vector<T>& list) const {
    for (const JsonValue& item : items()) item.to(list.emplace_back());
  }
  void to(std::map<std::string, std::string>& texts) const {
    for (const auto& [name, value] : object().items()) (*this)[name.c_str()].to(texts[name]);
  }

  std::vector<JsonValue> items() const {
    if (!json_->is_array()) expected("a list");
    std::vector<JsonValue> list;
    for (const Json& item : *json_)
      list.emplace_back(item, *file_, fmt::format("{}[{}]", path_, list.size()));
    return list;
  }
  const Json& object() const {
    if (!json_->is_object()) expected("an object");
    return *json_;
  }
  /// A time; never negative.
  double us() const {
    double number = 0;
    to(number);
    if (number < 0) expected("a time of at least 0");
    return number;
  }

 private:
  const Json* json_;
  const std::string* file_;
  std::string path_;
};

void read_times(const JsonValue& times, SavedRow& row) {
  times["n"].to(row.time_us.n);
  if (row.time_us.n == 0) times["n"].expected("at least 1 iteration");
  row.time_us.mean = times["mean"].us();
  row.time_us.min = times["min"].us();
  row.time_us.max = times["max"].us();
  row.time_us.stdev = times["stdev"].us();
  row.time_us.p50 = times["p50"].us();
  for (const char* needed : {"p90", "p99"}) (void)times[needed];
  for (const auto& [name, value] : times.object().items()) {
    double percent = 0;
    const char* end = name.data() + name.size();
    if (!name.starts_with('p') || std::from_chars(name.data() + 1, end, percent).ptr != end)
      continue;
    row.percentiles_us[percent] = times[name.c_str()].us();
  }
}

SavedRow read_row(const JsonValue& value) {
  SavedRow row;
  value["coll"].to(row.coll);
  value.read("dtype", row.dtype);
  value.read("op", row.op);
  value.read("place", row.place);
  value.read("root", row.root);
  value.read("layout", row.layout);
  value.read("counts", row.counts);
  value["bytes"].to(row.bytes);
  value["count"].to(row.count);
  value["ranks"].to(row.ranks);
  read_times(value["time_us"], row);
  value.read("time_us_rank_mean", row.rank_mean_us);
  value.read("slowest_rank", row.slowest_rank);
  value.read("algbw", row.algbw);
  value.read("busbw", row.busbw);
  value.read("wrong", row.wrong);
  value.read("flags", row.flags);
  value.read("block_p50_us", row.block_p50_us);
  value.read("samples_us", row.samples_us);
  return row;
}

World read_world(const JsonValue& value) {
  World world;
  value["size"].to(world.size);
  value["hosts"].to(world.hosts);
  value.read("threads", world.threads);
  value.read("cpus", world.cpus);
  value.read("oversubscribed", world.oversubscribed);
  for (const JsonValue& item : value["ranks"].items()) {
    RankInfo& rank = world.ranks.emplace_back();
    item["rank"].to(rank.rank);
    item["host"].to(rank.host);
    item.read("pid", rank.pid);
    item.read("device", rank.device);
    item.read("cpuset", rank.cpuset);
    item.read("model", rank.model);
  }
  return world;
}

std::chrono::system_clock::time_point read_date(const JsonValue& value) {
  std::string text;
  value.to(text);
  std::tm date{};
  const char* end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &date);
  if (end == nullptr || *end != '\0') value.expected("a date such as 2026-01-31T12:00:00Z");
  return std::chrono::system_clock::from_time_t(timegm(&date));
}

Status read_status(const JsonValue& value) {
  std::string text;
  value.to(text);
  for (std::size_t i = 0; i < names_of<Status>.size(); ++i)
    if (names_of<Status>[i] == text) return static_cast<Status>(i);
  value.expected("one of: {}", fmt::join(names_of<Status>, " "));
}

}  // namespace

SavedRun parse_saved_run(std::string_view text, const std::string& file) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {  // "[json.exception.parse_error.101] parse error at ..."
    const std::string what = error.what();
    refuse("{}: expected the JSON of tutti bench --out FILE.json: {}", file,
           what.substr(what.find("] ") + 2));
  }
  const JsonValue run(json, file);
  int version = 0;
  run["schema_version"].to(version);
  if (version != 1) run["schema_version"].expected("1");

  SavedRun saved;
  saved.file = file;
  const JsonValue tool = run["tool"];
  tool["version"].to(saved.version);
  tool.read("git", saved.git);
  tool.read("build", saved.build);
  saved.status = read_status(run["status"]);
  run.read("error", saved.error);
  saved.started = read_date(run["started"]);
  run.read("duration_s", saved.duration_s);
  run.read("argv", saved.argv);
  run.read("env", saved.env);
  const JsonValue backend = run["backend"];
  backend["name"].to(saved.backend.name);
  backend["version"].to(saved.backend.version);
  backend.read("chosen_because", saved.backend.chosen_because);
  backend.read("transport", saved.backend.transport);
  saved.world = read_world(run["world"]);
  run.read("notes", saved.notes);
  for (const auto& [name, value] : run["config"].object().items())
    saved.config[name] = value.is_string() ? value.get<std::string>() : text_of(value);
  for (const JsonValue& item : run["results"].items()) saved.rows.push_back(read_row(item));
  return saved;
}

SavedRun read_saved_run(const std::string& file) {
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream.is_open() || errno != 0)  // A directory can be opened.
    refuse("{}: cannot be read: {}; expected a file of tutti bench --out FILE.json", file,
           std::generic_category().message(errno));
  return parse_saved_run(text.str(), file);
}

std::vector<SavedRun> read_saved_runs(const std::string& files) {
  std::vector<std::string> names;
  std::error_code ignored;
  if (std::filesystem::is_directory(files, ignored)) {
    for (const auto& entry : std::filesystem::directory_iterator(files, ignored))
      if (entry.path().extension() == ".json") names.push_back(entry.path());
    if (names.empty()) refuse("{}: no .json file is in this directory", files);
    std::ranges::sort(names);
  } else {
    for (const std::string_view name : split_list("files", files)) names.emplace_back(name);
  }
  std::vector<SavedRun> runs;
  for (const std::string& name : names) runs.push_back(read_saved_run(name));
  return runs;
}

std::string title(const SavedRow& row) {
  std::string text = row.coll;
  for (const std::string& word : {row.dtype, row.op})
    if (!word.empty()) text += " " + word;
  if (row.place == "in") text += " in-place";
  if (row.root.value_or(0) != 0) text += fmt::format(" root {}", *row.root);
  if (!row.layout.empty() && row.layout != "even") text += " " + row.layout;
  return text;
}

std::string size_text(const SavedRow& row) {
  return row.dtype.empty() ? "-" : format_bytes(row.bytes);
}

}  // namespace tutti::tool

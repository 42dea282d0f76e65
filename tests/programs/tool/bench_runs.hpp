#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <tutti/backend/forwarding_backend.hpp>

#include "bench/bench.hpp"

// Whole runs of `tutti bench` inside a test, over modified backends.

namespace tutti::tool {

using Json = nlohmann::json;

/// The text written to a FILE*.
class Captured {
 public:
  Captured() : file_(open_memstream(&text_, &size_)) {}
  ~Captured() {
    std::fclose(file_);
    std::free(text_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

/// Forwards to another backend, through `change`.
class Changed final : public ForwardingBackend {
 public:
  /// Receives the real call; may make it, and change anything before and after.
  using Real = std::function<Work(std::span<const Op>, const Call&)>;
  using Change = std::function<Work(std::span<const Op>, const Call&, const Real&)>;

  Changed(std::unique_ptr<Backend> inner, Change change)
      : ForwardingBackend(std::move(inner)), change_(std::move(change)) {}
  Work launch(std::span<const Op> ops, const Call& call) override {
    return change_(ops, call,
                   [this](std::span<const Op> o, const Call& c) { return inner().launch(o, c); });
  }

 private:
  Change change_;
};

/// The all_reduce calls of this rank go through `change`.
inline BenchOptions with_change(BenchOptions options, const Changed::Change& change,
                                int changed = 1) {
  options.decorate = [changed, change](int rank, std::unique_ptr<Backend> inner) {
    if (rank != changed) return inner;
    return std::unique_ptr<Backend>(std::make_unique<Changed>(
        std::move(inner),
        [change](std::span<const Op> ops, const Call& call, const Changed::Real& real) {
          return ops.front().kind == Operation::all_reduce ? change(ops, call, real)
                                                           : real(ops, call);
        }));
  };
  return options;
}

struct Result {
  Exit code;
  Json json;
  std::string err;

  const Json& row() const { return json.at("results").at(0); }
};
template <typename Options>
Result run(Exit (*command)(const Options&, std::FILE*, std::FILE*), const Options& options) {
  Captured out;
  Captured err;
  const Exit code = command(options, out.file(), err.file());
  const std::string text = out.text();
  return {code, text.empty() ? Json() : Json::parse(text), err.text()};
}
inline Result run(const BenchOptions& options) {
  return run(run_bench, options);
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tutti::tool

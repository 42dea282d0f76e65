#include "report/output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

std::string reason() {
  return std::generic_category().message(errno);
}

/// A file that appears complete or not at all: written to a temporary file, then renamed.
class AtomicFile {
 public:
  /// Creates the temporary file. @throws Failure usage, naming the file, if it cannot be written.
  explicit AtomicFile(const std::string& path)
      : path_(path), temporary_(fmt::format("{}.{}.tmp", path, getpid())) {
    file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0) refuse("--out {}: cannot be written: {}", path_, reason());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() {  // Without commit(): leaves no file.
    if (file_ < 0) return;
    close(file_);
    unlink(temporary_.c_str());
  }

  /// @throws Failure internal, naming the file.
  void commit(std::string_view text) {
    const auto failed = [this](const char* step) {
      throw Failure(Exit::internal, fmt::format("{}: {} failed: {}", path_, step, reason()));
    };
    while (!text.empty()) {
      const ssize_t n = ::write(file_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) failed("write");
      text.remove_prefix(static_cast<std::size_t>(n));
    }
    // Syncs the bytes first: the rename must not become durable before them.
    if (fsync(file_) != 0 && errno != EINVAL) failed("fsync");
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) failed("rename");
    close(std::exchange(file_, -1));
  }

 private:
  std::string path_;
  std::string temporary_;
  int file_ = -1;  // -1: committed.
};

std::string render(Format format, const Report& report) {
  switch (format) {
    case Format::table:
      return report.table ? report.table() : std::string();
    case Format::json:
      return to_json(report.run());
    case Format::ndjson:
      return to_ndjson(report.run(), report.shared);
    case Format::csv:
      return to_csv(report.run(), report.shared);
    case Format::markdown:
      break;
  }
  return report.markdown();
}

}  // namespace

Format format_of(std::string_view path) {
  if (path.ends_with(".json")) return Format::json;
  if (path.ends_with(".ndjson")) return Format::ndjson;
  if (path.ends_with(".csv")) return Format::csv;
  if (path.ends_with(".md")) return Format::markdown;
  refuse("--out {}: its name must end in .json, .ndjson, .csv or .md", path);
}

void add_output_options(OptionList& options, OutputOptions& to) {
  options.insert(
      options.end(),
      {{"-f,--format", to_choice(to.format), "format of stdout: table, json, ndjson, csv or md",
        "FORMAT", "Output"},
       {"--out", &to.files,
        "also write this file, whole or not at all, in the format of its ending: .json, .ndjson, "
        ".csv or .md; repeatable",
        "FILE", "Output"},
       {"--env-allow", &to.env_allow,
        "record the environment variables that match, too; repeatable", "GLOB", "Output"}});
}

void check_files(const OutputOptions& options) {
  for (const std::string& path : options.files) AtomicFile{path};
}

void write(const OutputOptions& options, const Report& report, std::FILE* out) {
  fmt::print(out, "{}", render(options.format, report));
  for (const std::string& path : options.files)
    AtomicFile(path).commit(render(format_of(path), report));
  flush(out);
}

void flush(std::FILE* out) {
  if (std::fflush(out) != 0) throw Failure(Exit::internal, "cannot write the output to stdout");
}

}  // namespace tutti::tool

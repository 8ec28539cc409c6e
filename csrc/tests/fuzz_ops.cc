// Calls the ops with good and bad inputs made up at random, on an ONNX Runtime of our own making:
//   fuzz_ops [--runs N] [--seed S] [--isa NAME] [--threads N] [--only NUMBER]
// Every call is run on every instruction set of the machine, or on the one named. Sanitizers watch what is read and
// written; here is checked that good calls work, with the same bits everywhere, and that bad ones are refused and
// change nothing. A kind of call that never came up is a failure too. --threads gives every call 2 to N threads, where
// it is otherwise one call in six: for a sanitizer that watches data races. --only runs the one call of that number.
#if !defined(_WIN32)
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "common/isa.h"
#include "ops/all_ops.h"
#include "tests/check.h"
#include "tests/fuzz_run.h"

extern "C" {
edge_rt::abi::Status* RegisterCustomOps(edge_rt::abi::SessionOptions* options, const edge_rt::abi::ApiBase* base);
int edge_rt_select_isa(const char* name);
}

using namespace edge_rt;        // NOLINT: a program, not a header
using namespace edge_rt::fuzz;  // NOLINT

namespace {

struct Options {
  int64_t runs = 2000, only = -1, threads = 0;
  uint64_t seed = 1;
  std::string isa;  // "": all

  // What repeats one call.
  std::string one(int64_t number) const {
    const std::string most = threads > 0 ? " --threads " + std::to_string(threads) : "";
    return "--seed " + std::to_string(seed) + most + " --only " + std::to_string(number);
  }
};

// The ops as registered for an instruction set, by the first and by the newest release of ONNX Runtime.
struct Registered {
  Isa isa;
  std::unique_ptr<ort::OpSet<AllOps>> oldest_set;
  std::vector<const abi::OpRecord*> newest, oldest;

  explicit Registered(Isa set) : isa(set) {
    CHECK(edge_rt_select_isa(isa_name(isa)) == 0);
    newest = fake::register_ops([](auto* options) { return RegisterCustomOps(options, fake::newest_release()); });
    // RegisterCustomOps keeps the release that it met first.
    ort::Api api;
    CHECK(ort::connect(fake::oldest_release(), &api) == nullptr);
    oldest_set = std::make_unique<ort::OpSet<AllOps>>(api, isa);
    CHECK(oldest_set->open("edge_rt") == nullptr);
    oldest = fake::register_ops([this](auto* options) { return oldest_set->add_to(options); });
  }

  const abi::OpRecord& find(const std::string& op, bool is_newest) const {
    for (const abi::OpRecord* record : is_newest ? newest : oldest) {
      if (op == record->name(record)) return *record;
    }
    std::fprintf(stderr, "%s is not registered\n", op.c_str());
    std::exit(1);
  }
};

using Counts = std::map<std::string, std::map<std::string, int64_t>>;  // by op and kind of call

// Kinds besides the mistakes.
constexpr const char *kGood = "good", *kWild = "good, wild numbers", *kFaultMet = "good, a call of the table failed",
                     *kFaultSurvived = "good, worked in spite of a failed call", *kTwo = "two mistakes";

std::vector<Mistake> all_mistakes(const Subject& subject) {
  std::vector<Mistake> all = common_mistakes(subject);
  all.insert(all.end(), subject.own_mistakes.begin(), subject.own_mistakes.end());
  return all;
}

bool spoil(Case& call, Random& random, const Mistake& mistake) {
  if (!mistake.make(call, random)) return false;
  call.mistake += call.mistake.empty() ? mistake.name : std::string("+") + mistake.name;
  return true;
}

// A call with the mistake whose turn it is; with another one where none of several calls can have it.
Case spoiled(const Subject& subject, Random& random, int64_t turn) {
  const std::vector<Mistake> mistakes = all_mistakes(subject);
  const auto count = static_cast<int64_t>(mistakes.size());
  for (int64_t tries = 0;; ++tries) {
    Case call = subject.make(random);
    const int64_t at = tries < 20 ? turn % count : random.below(count);
    if (spoil(call, random, mistakes[static_cast<size_t>(at)])) return call;
  }
}

// A second mistake, which a later one does not hide.
void spoil_again(Case& call, const Subject& subject, Random& random) {
  const std::vector<Mistake> mistakes = lasting_mistakes(subject);
  const std::string first = call.mistake;
  for (;;) {
    const Mistake& mistake = mistakes[static_cast<size_t>(random.below(static_cast<int64_t>(mistakes.size())))];
    if (mistake.name != first && spoil(call, random, mistake)) break;
  }
  call.words.clear();
}

// What differs where the parts of a call that worked are calls of their own; "" if nothing. A part finds the tensor
// that is written as the call found it: it reads nothing that other parts write.
std::string compare_parts(const Case& call, const Outcome& whole, const std::vector<Case>& parts,
                          const abi::OpRecord& record, Random& random) {
  size_t begin = 0;
  for (const Case& part : parts) {
    std::string problem;
    const Outcome alone = run(part, record, Conditions::any(random), &problem);
    if (problem.empty()) problem = judge(part, alone);
    if (!problem.empty()) return "a part by itself: " + problem;
    const std::vector<uint8_t>& y = alone.outputs[0];
    if (std::memcmp(y.data(), whole.outputs[0].data() + begin, y.size()) != 0) return "a part by itself has other bits";
    begin += y.size();
    for (const ByteRange& range : part.writable) {
      // An empty tensor, as of one tap without room for drafts, has no first element.
      const auto begins = static_cast<std::ptrdiff_t>(range.begin), ends = static_cast<std::ptrdiff_t>(range.end);
      if (!std::equal(alone.in_place.begin() + begins, alone.in_place.begin() + ends,
                      whole.in_place.begin() + begins)) {
        return "a part by itself writes other bits";
      }
    }
  }
  return parts.empty() || begin == whole.outputs[0].size() ? "" : "parts have other rows than " + call.op;
}

[[noreturn]] void fail(const Options& options, int64_t number, const Case& call, const std::string& problem,
                       const Registered& registered) {
  std::fprintf(stderr, "fuzz_ops: %s\n  %s, %s, on %s\n", problem.c_str(), call.op.c_str(),
               call.mistake.empty() ? "a good call" : ("a call with a mistake: " + call.mistake).c_str(),
               isa_name(registered.isa));
  for (const fake::Attribute& a : call.attributes) {
    std::fprintf(stderr, "  %s: integer %lld, float %g, text '%.20s'\n", a.name.c_str(),
                 static_cast<long long>(a.integer), static_cast<double>(a.real), a.text.c_str());
  }
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    std::fprintf(stderr, "  input %zu:%s", i, call.inputs[i].present ? "" : " absent");
    for (const int64_t dim : call.inputs[i].dims) std::fprintf(stderr, " %lld", static_cast<long long>(dim));
    std::fprintf(stderr, ", alignment %zu\n", call.inputs[i].alignment);
  }
  std::fprintf(stderr, "  again: fuzz_ops %s\n", options.one(number).c_str());
  std::exit(1);
}

// What a process does, for the one that watches over it.
struct Doing {
  char text[128];
};

void run_one(const Options& options, int64_t number, const std::vector<Registered>& registered,
             const std::vector<Subject>& subjects, Counts* counts, Doing* doing) {
  Random random(options.seed * 0x2545f4914f6cdd1du + static_cast<uint64_t>(number));
  // Operators and kinds of calls take turns, so that few calls have all of them; what a call holds is drawn. The last
  // two operators, attention and whole layers, have the most to go wrong.
  const auto most = static_cast<int64_t>(subjects.size());
  const int64_t place = number % (most + 2), round = number / (most + 2);
  const Subject& subject = subjects[static_cast<size_t>(place < most ? place : place - 2)];
  const int64_t turn = place < most - 2 ? round : 2 * round + (place >= most ? 1 : 0);
  constexpr int64_t kKinds = 12, kFirstMistake = 5;
  const int64_t choice = turn % kKinds;
  std::string kind = kGood;
  bool has_fault = false;
  Case call;
  if (choice < kFirstMistake) {
    call = subject.make(random);
    if (choice == 0) {
      make_wild(call, random, subject.packed_inputs);
      kind = kWild;
    }
    has_fault = choice == 1;
  } else {
    call = spoiled(subject, random, turn / kKinds * (kKinds - kFirstMistake) + choice - kFirstMistake);
    kind = call.mistake;
    if (random.one_in(5)) {
      spoil_again(call, subject, random);
      kind = kTwo;
    }
  }
  const bool is_newest = random.one_in(2);
  Outcome first;
  for (size_t i = 0; i < registered.size(); ++i) {
    std::snprintf(doing->text, sizeof doing->text, "%s, %s on %s", options.one(number).c_str(), call.op.c_str(),
                  isa_name(registered[i].isa));
    const abi::OpRecord& record = registered[i].find(call.op, is_newest);
    Conditions conditions = Conditions::any(random);
    if (options.threads > 0) {
      conditions.threads = 2 + static_cast<int>((number + static_cast<int64_t>(i)) % (options.threads - 1));
    }
    std::string problem;
    if (has_fault) {
      // Any call of the table, and often one of the last, which are not about inputs.
      conditions.runs = 1;
      const int calls = run(call, record, conditions, &problem).calls;
      const int64_t late = random.one_in(2) ? std::min(calls, 6) : calls;
      conditions.fault = calls - 1 - static_cast<int>(random.below(late));
    }
    Outcome outcome;
    if (problem.empty()) outcome = run(call, record, conditions, &problem);
    if (problem.empty() && has_fault && !outcome.met_fault) problem = "the same call made fewer calls of the table";
    if (problem.empty() && (!has_fault || outcome.message.empty())) problem = judge(call, outcome);
    const bool must_agree = call.is_tame && !has_fault && i > 0;
    if (problem.empty() && must_agree && (outcome.outputs != first.outputs || outcome.in_place != first.in_place)) {
      problem = std::string("the bits are not those of ") + isa_name(registered[0].isa);
    }
    if (problem.empty() && must_agree && outcome.message != first.message) {
      problem = "another message: " + outcome.message;
    }
    if (problem.empty() && kind == kGood && !has_fault && subject.take_apart) {
      problem = compare_parts(call, outcome, subject.take_apart(call), record, random);
    }
    if (!problem.empty()) fail(options, number, call, problem, registered[i]);
    if (has_fault) kind = outcome.message.empty() ? kFaultSurvived : kFaultMet;
    ++(*counts)[call.op][kind];
    for (const std::string& feature : call.features) (*counts)[call.op][feature] += kind == kGood ? 1 : 0;
    if (i == 0) first = std::move(outcome);
  }
}

[[noreturn]] void usage() {
  std::fprintf(stderr, "usage: fuzz_ops [--runs N] [--seed S] [--isa NAME] [--threads 2...64] [--only NUMBER]\n");
  std::exit(2);
}

Options read_options(int count, char** words) {
  Options options;
  for (int i = 1; i < count; i += 2) {
    const std::string name = words[i];
    const bool is_known =
        name == "--runs" || name == "--seed" || name == "--isa" || name == "--threads" || name == "--only";
    if (i + 1 == count || !is_known) usage();
    if (name == "--runs") options.runs = std::atoll(words[i + 1]);
    if (name == "--seed") options.seed = std::strtoull(words[i + 1], nullptr, 10);
    if (name == "--isa") options.isa = words[i + 1];
    if (name == "--threads") options.threads = std::atoll(words[i + 1]);
    if (name == "--threads" && (options.threads < 2 || options.threads > 64)) usage();
    if (name == "--only") options.only = std::atoll(words[i + 1]);
  }
  return options;
}

// Prints how often each kind came up; returns those that never did, a line each.
std::string report(const std::vector<Subject>& subjects, Counts& counts) {
  std::string missing;
  for (const Subject& subject : subjects) {
    std::vector<std::string> kinds = {kGood, kWild, kFaultMet, kTwo};
    // Asking for memory or threads may fail without harm: seldom, and not of every op.
    if (counts[subject.op].count(kFaultSurvived) != 0) kinds.emplace_back(kFaultSurvived);
    kinds.insert(kinds.end(), subject.features.begin(), subject.features.end());
    for (const Mistake& mistake : all_mistakes(subject)) kinds.emplace_back(mistake.name);
    for (const std::string& kind : kinds) {
      const int64_t count = counts[subject.op][kind];
      std::printf("%-14s %-40s %8lld\n", subject.op, kind.c_str(), static_cast<long long>(count));
      if (count == 0) missing += std::string("never came up: ") + subject.op + ", " + kind + "\n";
    }
  }
  return missing;
}

int run_all(const Options& options, Doing* doing) {
  std::vector<Registered> registered;
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (isa_is_usable(isa) && (options.isa.empty() || options.isa == isa_name(isa))) registered.emplace_back(isa);
  }
  if (registered.empty()) {
    std::fprintf(stderr, "fuzz_ops: %s cannot be used here\n", options.isa.c_str());
    return 2;
  }
  const std::vector<Subject> subjects = {
      quant_linear(), quant_linear_parts(), quant_embed(), row_top_k(), draft_head(),     short_conv(),
      state_conv(),   gated_delta(),        ssm_scan(),    experts(),   spec_attention(), decoder_layer()};
  Counts counts;
  if (options.only >= 0) {
    run_one(options, options.only, registered, subjects, &counts, doing);
    return 0;
  }
  for (int64_t number = 0; number < options.runs; ++number) {
    run_one(options, number, registered, subjects, &counts, doing);
  }
  const std::string missing = report(subjects, counts);
  std::printf("%lld runs on:", static_cast<long long>(options.runs) * static_cast<long long>(registered.size()));
  for (const Registered& set : registered) std::printf(" %s", isa_name(set.isa));
  std::printf("\n%s", missing.c_str());
  return missing.empty() ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const Options options = read_options(count, words);
#if defined(_WIN32)
  Doing doing{};
  return run_all(options, &doing);
#else
  if (options.only >= 0) {
    Doing doing{};
    return run_all(options, &doing);
  }
  // A sanitizer or a bad read ends a process without a word of what it did: a second one says it.
  void* shared = mmap(nullptr, sizeof(Doing), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) return run_all(options, static_cast<Doing*>(shared));
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  std::fprintf(stderr, "fuzz_ops failed; last call: fuzz_ops %s\n", static_cast<Doing*>(shared)->text);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
#endif
}

from hypothesis import given, strategies as st
from kv_text import ANSWERS, Window, chat_windows, cut, read_turns, read_windows, spread, text_windows, write_windows


@given(st.integers(1, 600))
def test_spreading_visits_every_entry_once(count):
    assert sorted(spread(count)) == list(range(count))


def test_turns_are_read_from_all_over_the_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"turns": ["{index}"]}}\n' for index in range(100)))
    assert [turns[0] for turns in read_turns(path)][:3] == ["0", "37", "74"]


def test_a_long_text_is_cut_into_whole_windows_that_count_all_but_their_first_token():
    windows = text_windows(list(range(100)), length=30, tokens=50)
    assert [window.ids for window in windows] == [list(range(30)), list(range(30, 60))]
    assert windows[0].counted() == list(range(1, 30))


def test_a_text_that_is_too_short_gives_fewer_windows():
    assert len(text_windows(list(range(100)), length=30, tokens=10000)) == 3


def test_chats_stay_whole_and_only_answers_count():
    chats = [([1, 2], [3, 4, 5]), ([6], [7]), ([8, 9, 10], [11])]
    windows = chat_windows(chats, length=8, tokens=100)
    assert [window.ids for window in windows] == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11]]
    assert [[window.ids[index] for index in window.counted()] for window in windows] == [[3, 4, 5, 7], [11]]


def test_a_chat_longer_than_a_window_is_left_out():
    windows = chat_windows([([1] * 9, [2]), ([3], [4])], length=8, tokens=100)
    assert [window.ids for window in windows] == [[3, 4]]


def test_packing_ends_once_enough_tokens_count():
    windows = chat_windows([([0], [1, 2, 3])] * 10, length=4, tokens=6)
    assert len(windows) == 2


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(0, 9), max_size=9)), max_size=12)
)
def test_no_window_is_too_long_and_every_fitting_answer_counts_once(chats):
    windows = chat_windows(chats, length=12, tokens=10**6)
    assert all(0 < len(window.ids) <= 12 for window in windows)
    fitting = [answer for prompt, answer in chats if prompt and answer and len(prompt) + len(answer) <= 12]
    counted = [window.ids[index] for window in windows for index in window.counted()]
    assert counted == [token for answer in fitting for token in answer]


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 9), st.integers(1, 4))
def test_passes_cover_a_window_in_order_and_want_what_predicts(marks, rows, wanted):
    spans = [(index, index + 1) for index, mark in enumerate(marks) if mark and index]
    passes = list(cut(Window(ANSWERS, list(range(len(marks))), spans), rows, wanted))
    assert [index for begin, end, _ in passes for index in range(begin, end)] == list(range(len(marks)))
    assert [index + 1 for _, _, here in passes for index in here] == [begin for begin, _ in spans]
    assert all(end - begin <= rows and len(here) <= wanted for begin, end, here in passes)
    assert all(begin <= index < end for begin, end, here in passes for index in here)


def test_the_beginning_of_a_window_counts_what_is_in_it():
    window = Window(ANSWERS, list(range(10)), [(2, 4), (6, 9), (9, 10)])
    assert window.first(7) == Window(ANSWERS, list(range(7)), [(2, 4), (6, 7)])


def test_windows_survive_a_file(tmp_path):
    windows = [Window(ANSWERS, [1, 2, 3, 4], [(1, 2), (3, 4)])]
    write_windows(windows, tmp_path / "windows.jsonl")
    assert read_windows(tmp_path / "windows.jsonl") == windows

/* The pieces of many strings, concatenated before they are encoded.
 *
 *   layout     texts and facts of many strings -> one run of UTF-8, where each piece starts, and which control tokens
 *              the scaffold spells, each with its byte
 *
 * Example. Two strings; the pieces "<e>" are scaffold (their fact has the bit 4), and controls_of["<e>"] is the pair
 * (byte 0, id 7) as int32.
 *
 *     texts    ["<e>", "ab"], ["<e>"]      facts  [4, 0], [4]
 *
 *     data     <e>ab<e>                    edges  0 3 5 8        facts  4 0 4       pieces  2 1
 *     control_at  0 5                      control_ids  7 7      nfc_classes  0 0   (ASCII only)
 */

#include "_kernel.h"
#include <stdint.h>
#include <string.h>

#define SCAFFOLD 4 /* the bit of a piece's fact that means: control tokens are recognised in this text */

/* What Unicode normalisation (NFC) may do to a string: the highest class of its characters. */
enum { ASCII_ONLY = 0, SAFE_IN_NFC = 1, MAY_CHANGE = 2 };

/* ------------------------------------------------------------------ Unicode */

/* Ranges in which no character changes under NFC, combines with the one before it, or is reordered: the common ones,
 * so that most texts need no check of the whole string. tests/tokenizer/test_layout.py compares each character with
 * `unicodedata`. */
static const uint32_t SAFE[][2] = {
    {0x0000, 0x02FF},   {0x038E, 0x03A1},   {0x03A3, 0x0482},   {0x048A, 0x052F},   {0x0531, 0x0556},
    {0x05D0, 0x05EA},   {0x0620, 0x064A},   {0x0660, 0x066F},   {0x0671, 0x06D5},   {0x06EE, 0x06FF},
    {0x0904, 0x093B},   {0x093D, 0x094C},   {0x0960, 0x097F},   {0x10D0, 0x10FF},   {0x1E00, 0x1F15},
    {0x2002, 0x2064},   {0x2074, 0x208E},   {0x20A0, 0x20C0},   {0x2100, 0x2125},   {0x212C, 0x218B},
    {0x2190, 0x2328},   {0x232B, 0x2426},   {0x2460, 0x2ADB},   {0x2ADD, 0x2B73},   {0x3000, 0x3029},
    {0x3041, 0x3096},   {0x309B, 0x30FF},   {0x4E00, 0x9FFF},   {0xAC00, 0xD7A3},   {0xFE00, 0xFE0F},
    {0xFF01, 0xFFBE},   {0x1F1E6, 0x1F1FF}, {0x1F300, 0x1F64F}, {0x1F680, 0x1F6D7}, {0x1F900, 0x1F9FF},
};

static int is_safe(uint32_t point)
{
    size_t low = 0, high = sizeof(SAFE) / sizeof(SAFE[0]); /* a range with `point` can only be in low..high */
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (point > SAFE[middle][1])
            low = middle + 1;
        else if (point >= SAFE[middle][0])
            return 1;
        else
            high = middle;
    }
    return 0;
}

/* The class of a string in valid UTF-8. */
static int nfc_class_of(const unsigned char *text, Py_ssize_t size)
{
    int found = ASCII_ONLY;
    Py_ssize_t at = 0;
    while (at < size) {
        if (size - at >= 8) { /* eight ASCII bytes at once: no byte has its high bit set */
            uint64_t eight;
            memcpy(&eight, text + at, 8);
            if (!(eight & 0x8080808080808080u)) {
                at += 8;
                continue;
            }
        }
        unsigned char first = text[at];
        if (first < 0x80) {
            at++;
            continue;
        }
        int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1; /* bytes after the first */
        if (at + more >= size)
            return MAY_CHANGE; /* cannot happen in valid UTF-8 */
        uint32_t point = first & (0x3F >> more); /* the low bits of the first byte; each further byte adds six */
        for (int k = 1; k <= more; k++)
            point = point << 6 | (text[at + k] & 0x3F);
        if (!is_safe(point))
            return MAY_CHANGE;
        found = SAFE_IN_NFC;
        at += more + 1;
    }
    return found;
}

/* ------------------------------------------------------------------ pieces */

typedef struct {
    PyObject *text;     /* owned */
    PyObject *controls; /* owned; the control tokens of a scaffold text as pairs (byte, id) of int32, or NULL */
    const char *utf8;   /* borrowed from `text`, which caches its UTF-8 as long as it lives */
    Py_ssize_t size;    /* bytes of `utf8` */
    int32_t fact;
} Piece;

static void release_pieces(Piece *pieces, Py_ssize_t count)
{
    for (Py_ssize_t at = 0; at < count; at++) {
        Py_XDECREF(pieces[at].text);
        Py_XDECREF(pieces[at].controls);
    }
    PyMem_Free(pieces);
}

/* How many control tokens a piece spells. */
static Py_ssize_t control_count(const Piece *piece)
{
    return piece->controls ? PyBytes_Size(piece->controls) / 8 : 0;
}

/* The list at an index of a list; a borrowed reference, or NULL with an error set. */
static PyObject *list_at(PyObject *lists, Py_ssize_t index, const char *what)
{
    PyObject *found = PyList_GetItem(lists, index);
    if (found == NULL)
        return NULL;
    if (!PyList_Check(found)) {
        PyErr_Format(PyExc_TypeError, "%s[%zd] must be a list", what, index);
        return NULL;
    }
    return found;
}

/* Fill one piece, which is zeroed: own its text, and read its bytes, its fact and, for scaffold, its control tokens.
 * Returns -1 with an error set; what the piece owns by then is released by the caller. `text` and `fact` are borrowed
 * from lists, so no Python code may run before `text` is owned and `fact` is read. */
static int fill_piece(Piece *piece, PyObject *text, PyObject *fact, PyObject *controls_of)
{
    if (!PyUnicode_Check(text)) {
        PyErr_SetString(PyExc_TypeError, "a text must be a str");
        return -1;
    }
    if (!PyLong_Check(fact)) { /* an `__index__` would run Python code */
        PyErr_SetString(PyExc_TypeError, "a fact must be an int");
        return -1;
    }
    long bits = PyLong_AsLong(fact);
    if (bits == -1 && PyErr_Occurred())
        return -1;
    if (bits < INT32_MIN || bits > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a fact must fit into int32");
        return -1;
    }
    Py_INCREF(text);
    piece->text = text;
    piece->fact = (int32_t)bits;
    piece->utf8 = PyUnicode_AsUTF8AndSize(text, &piece->size); /* fails for a lone surrogate */
    if (piece->utf8 == NULL)
        return -1;
    if (bits & SCAFFOLD) {
        piece->controls = PyObject_GetItem(controls_of, text); /* may run Python code: `ScaffoldControls.__missing__` */
        if (piece->controls == NULL)
            return -1;
        if (!PyBytes_Check(piece->controls) || PyBytes_Size(piece->controls) % 8) {
            PyErr_SetString(PyExc_TypeError, "the control tokens of a text must be bytes of int32 pairs");
            return -1;
        }
    }
    return 0;
}

/* A growing array of pieces. All entries from `used` on are zero. */
typedef struct {
    Piece *pieces;
    Py_ssize_t used, room;
} PieceArray;

/* Make room for one more piece by doubling the array. `room` pieces fit into PY_SSIZE_T_MAX bytes, so twice as many fit
 * into size_t. */
static int grow(PieceArray *array)
{
    if (array->used < array->room)
        return 0;
    Piece *larger = PyMem_Realloc(array->pieces, 2 * array->room * sizeof(Piece));
    if (larger == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(larger + array->room, 0, array->room * sizeof(Piece));
    array->pieces = larger;
    array->room *= 2;
    return 0;
}

/* Append the pieces of one string; -1 with an error set. `texts` and `facts` are lists that the caller owns references
 * to. Python code may run (see `fill_piece`) and change them, so their sizes are read again at every step. */
static int append_string(PieceArray *array, PyObject *texts, PyObject *facts, PyObject *controls_of)
{
    for (Py_ssize_t at = 0; at < PyList_Size(texts) && at < PyList_Size(facts); at++) {
        if (grow(array) < 0)
            return -1;
        PyObject *text = PyList_GetItem(texts, at), *fact = text ? PyList_GetItem(facts, at) : NULL;
        if (fact == NULL)
            return -1;
        array->used++; /* before the piece is filled, so that what it owns is released if that fails */
        if (fill_piece(&array->pieces[array->used - 1], text, fact, controls_of) < 0)
            return -1;
    }
    if (PyList_Size(texts) != PyList_Size(facts)) {
        PyErr_SetString(PyExc_ValueError, "as many facts as texts are needed");
        return -1;
    }
    return 0;
}

/* All pieces of all strings; `counts` gets the number of pieces of each string, `used` their sum. NULL with an error
 * set; otherwise the caller releases the pieces. */
static Piece *collect_pieces(PyObject *texts, PyObject *facts, PyObject *controls_of, int64_t *counts,
                             Py_ssize_t strings, Py_ssize_t *used)
{
    PieceArray array = {PyMem_Calloc(64, sizeof(Piece)), 0, 64};
    if (array.pieces == NULL)
        return (Piece *)PyErr_NoMemory();
    for (Py_ssize_t string = 0; string < strings; string++) {
        PyObject *own = list_at(texts, string, "texts"), *bits = own ? list_at(facts, string, "facts") : NULL;
        if (bits == NULL)
            goto failed;
        Py_INCREF(own);
        Py_INCREF(bits);
        const Py_ssize_t first = array.used;
        const int appended = append_string(&array, own, bits, controls_of);
        Py_DECREF(own);
        Py_DECREF(bits);
        if (appended < 0)
            goto failed;
        counts[string] = array.used - first;
    }
    *used = array.used;
    return array.pieces;
failed:
    release_pieces(array.pieces, array.used);
    return NULL;
}

/* ------------------------------------------------------------------ layout */

/* Copy the pieces into the buffers of `parts`, which have the right sizes. Runs no Python code. */
static void fill_layout(const Piece *pieces, Py_ssize_t strings, PyObject *const *parts, int *worst_class,
                        int *all_start_with_control)
{
    char *const data = PyBytes_AsString(parts[LAYOUT_DATA]);
    int64_t *const edges = (int64_t *)PyBytes_AsString(parts[LAYOUT_EDGES]);
    int32_t *const facts = (int32_t *)PyBytes_AsString(parts[LAYOUT_FACTS]);
    const int64_t *const counts = (const int64_t *)PyBytes_AsString(parts[LAYOUT_PIECES]);
    int64_t *control_at = (int64_t *)PyBytes_AsString(parts[LAYOUT_CONTROL_AT]); /* the next free entry */
    int32_t *control_id = (int32_t *)PyBytes_AsString(parts[LAYOUT_CONTROL_IDS]);
    char *const nfc_classes = PyBytes_AsString(parts[LAYOUT_NFC_CLASSES]);
    Py_ssize_t k = 0, byte = 0;
    *worst_class = ASCII_ONLY;
    *all_start_with_control = 1;
    for (Py_ssize_t string = 0; string < strings; string++) {
        const Py_ssize_t start = byte;
        const int64_t *const first = control_at; /* the string's first control token, if it has one */
        for (const Py_ssize_t stop = k + (Py_ssize_t)counts[string]; k < stop; k++) {
            edges[k] = byte;
            facts[k] = pieces[k].fact;
            memcpy(data + byte, pieces[k].utf8, pieces[k].size);
            const char *pairs = pieces[k].controls ? PyBytes_AsString(pieces[k].controls) : NULL;
            for (Py_ssize_t left = control_count(&pieces[k]); left > 0; left--, pairs += 8) {
                int32_t pair[2]; /* byte within the piece, id; copied, since bytes need not be aligned */
                memcpy(pair, pairs, 8);
                *control_at++ = byte + pair[0];
                *control_id++ = pair[1];
            }
            byte += pieces[k].size;
        }
        const int found = nfc_class_of((const unsigned char *)data + start, byte - start);
        nfc_classes[string] = (char)found;
        *worst_class = found > *worst_class ? found : *worst_class;
        const int starts_with_control = control_at > first && *first == start;
        *all_start_with_control = *all_start_with_control && (byte == start || starts_with_control);
    }
    edges[k] = byte;
}

/* The sums that the sizes of the buffers follow from; -1 with an error set if they overflow. */
static int measure(const Piece *pieces, Py_ssize_t count, Py_ssize_t *bytes, Py_ssize_t *controls)
{
    *bytes = *controls = 0;
    for (Py_ssize_t k = 0; k < count; k++) {
        const Py_ssize_t more = control_count(&pieces[k]);
        if (pieces[k].size > PY_SSIZE_T_MAX - *bytes || more > PY_SSIZE_T_MAX - *controls) {
            PyErr_NoMemory();
            return -1;
        }
        *bytes += pieces[k].size;
        *controls += more;
    }
    return 0;
}

/* Returns a new tuple of `LAYOUT_PARTS` bytes objects. `worst_class` becomes the highest class of a string,
 * `all_start_with_control` whether every string that is not empty begins with a control token. */
PyObject *make_layout(PyObject *texts, PyObject *facts, PyObject *controls_of, int *worst_class,
                      int *all_start_with_control)
{
    PyObject *parts[LAYOUT_PARTS] = {NULL}; /* owned */
    PyObject *result = NULL;
    Piece *pieces = NULL;
    Py_ssize_t count = 0, bytes, controls;
    const Py_ssize_t strings = PyList_Size(texts);
    if (PyList_Size(facts) != strings) {
        PyErr_SetString(PyExc_ValueError, "as many lists of facts as of texts are needed");
        return NULL;
    }
    parts[LAYOUT_PIECES] = bytes_of_size(strings, sizeof(int64_t));
    parts[LAYOUT_NFC_CLASSES] = bytes_of_size(strings, 1);
    if (parts[LAYOUT_PIECES] == NULL || parts[LAYOUT_NFC_CLASSES] == NULL)
        goto done;
    int64_t *const counts = (int64_t *)PyBytes_AsString(parts[LAYOUT_PIECES]);
    pieces = collect_pieces(texts, facts, controls_of, counts, strings, &count);
    if (pieces == NULL)
        goto done;
    /* From here on no Python code runs: bytes objects are not tracked by the garbage collector. */
    if (measure(pieces, count, &bytes, &controls) < 0)
        goto done;
    parts[LAYOUT_DATA] = bytes_of_size(bytes, 1);
    parts[LAYOUT_EDGES] = bytes_of_size(count + 1, sizeof(int64_t));
    parts[LAYOUT_FACTS] = bytes_of_size(count, sizeof(int32_t));
    parts[LAYOUT_CONTROL_AT] = bytes_of_size(controls, sizeof(int64_t));
    parts[LAYOUT_CONTROL_IDS] = bytes_of_size(controls, sizeof(int32_t));
    for (int part = 0; part < LAYOUT_PARTS; part++) {
        if (parts[part] == NULL)
            goto done;
    }
    fill_layout(pieces, strings, parts, worst_class, all_start_with_control);
    result = PyTuple_Pack(LAYOUT_PARTS, parts[LAYOUT_DATA], parts[LAYOUT_EDGES], parts[LAYOUT_FACTS],
                          parts[LAYOUT_PIECES], parts[LAYOUT_CONTROL_AT], parts[LAYOUT_CONTROL_IDS],
                          parts[LAYOUT_NFC_CLASSES]);
done:
    if (pieces != NULL)
        release_pieces(pieces, count);
    for (int part = 0; part < LAYOUT_PARTS; part++)
        Py_XDECREF(parts[part]);
    return result;
}

const char layout_doc[] = "layout(texts, facts, controls_of)\n--\n\n"
                          "Concatenate the pieces of many strings.\n\n"
                          "See `niels_gpt.tokenizer.fast_path.layout`, which returns the same as arrays.";

PyObject *layout(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *texts, *facts, *controls_of; /* borrowed from `args` */
    int worst_class, all_start_with_control;
    if (!PyArg_ParseTuple(args, "O!O!O:layout", &PyList_Type, &texts, &PyList_Type, &facts, &controls_of))
        return NULL;
    return make_layout(texts, facts, controls_of, &worst_class, &all_start_with_control);
}

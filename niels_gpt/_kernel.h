/* What the files of the native kernel share. */

#ifndef NIELS_GPT_KERNEL_H
#define NIELS_GPT_KERNEL_H

/* Only the limited API of Python 3.11 is used, so one build serves 3.11 and later. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* _kernel.c: new bytes with room for `count` items of `width` bytes, not initialised; NULL with an error set. */
PyObject *bytes_of_size(Py_ssize_t count, Py_ssize_t width);

/* _kernel_layout.c: `make_layout` returns a new tuple of bytes objects, in the order of this enum, which is that of
 * `fast_path.BatchLayout`. */
enum {
    LAYOUT_DATA,
    LAYOUT_EDGES,
    LAYOUT_FACTS,
    LAYOUT_PIECES,
    LAYOUT_CONTROL_AT,
    LAYOUT_CONTROL_IDS,
    LAYOUT_NFC_CLASSES,
    LAYOUT_PARTS
};
extern const char layout_doc[];
PyObject *layout(PyObject *module, PyObject *args);
PyObject *make_layout(PyObject *texts, PyObject *facts, PyObject *controls_of, int *worst_class,
                      int *all_start_with_control);

/* _kernel_attribute.c: `make_attribution` takes the arguments of `attribute` in the order of this enum, borrowed, and
 * returns a new tuple. */
enum { IDS, LENGTHS, EDGES, PIECES, CONTROL_AT, CONTROL_IDS, ARRAYS };
extern const char attribute_doc[];
PyObject *attribute(PyObject *module, PyObject *args);
PyObject *make_attribution(PyObject *const *arguments);

#endif

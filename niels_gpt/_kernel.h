/* What the files of the native kernel share. Only the limited API of Python 3.11 is used, so one build serves 3.11 and
 * later. */

#ifndef NIELS_GPT_KERNEL_H
#define NIELS_GPT_KERNEL_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* _kernel.c: new bytes with room for `count` items of `width` bytes. */
PyObject *bytes_of_size(Py_ssize_t count, Py_ssize_t width);

/* _kernel_messages.c */
extern const char copied_doc[], plain_roles_doc[];
PyObject *copied(PyObject *module, PyObject *messages);
PyObject *plain_roles(PyObject *module, PyObject *args);

/* _kernel_json.c */
extern const char json_text_doc[], is_json_doc[];
PyObject *json_text(PyObject *module, PyObject *value);
PyObject *is_json(PyObject *module, PyObject *text);

/* _kernel_layout.c */
extern const char layout_doc[];
PyObject *layout(PyObject *module, PyObject *args);
PyObject *laid_out(PyObject *texts, PyObject *facts, PyObject *frames, int *worst, int *led);

/* _kernel_attribute.c: `attributed` takes the arguments of `attribute` in this order. */
enum { IDS, LENGTHS, EDGES, PIECES, AT, CONTROLS, ARRAYS };
extern const char attribute_doc[];
PyObject *attribute(PyObject *module, PyObject *args);
PyObject *attributed(PyObject *const *given);

#endif

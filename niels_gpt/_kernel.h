/* What the files of the native kernel share. Only the limited API of Python 3.11 is used, so one build serves 3.11 and
 * later. */

#ifndef NIELS_GPT_KERNEL_H
#define NIELS_GPT_KERNEL_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* _kernel_messages.c */
extern const char copied_doc[], plain_roles_doc[], json_text_doc[], is_json_doc[];
PyObject *copied(PyObject *module, PyObject *messages);
PyObject *plain_roles(PyObject *module, PyObject *args);
PyObject *json_text(PyObject *module, PyObject *value);
PyObject *is_json(PyObject *module, PyObject *text);

#endif

"""The measurements of `mainspring bench`, which measure the user's machine and engine on temporary stores."""
